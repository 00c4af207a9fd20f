// Feeds standard input to Perfetto's trace processor and writes its answers to standard output.
//
//     node trace_processor.cjs FOLDER
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm of Perfetto's user interface. Input and output are its
// RPC messages (TraceProcessorRpcStream). The bundle wants to be a web worker: it gets a context of its
// own in which it looks like one, with a request that reads files of FOLDER and nothing else.

"use strict";
const { webcrypto } = require("crypto");
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const say = (...words) => process.stderr.write(words.join(" ") + "\n");

class FileRequest {
  open(_method, name) {
    this.file = path.join(folder, path.basename(name));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
}

const worker = vm.createContext({
  WorkerGlobalScope: class {},
  XMLHttpRequest: FileRequest,
  location: { href: "file:///engine_bundle.js" },
  console: { log: say, warn: say, error: say, info: say },
  TextDecoder, URL, crypto: webcrypto, performance, setTimeout,
});
worker.self = worker;
const script = path.join(folder, "engine_bundle.js");
vm.runInContext(fs.readFileSync(script, "utf8"), worker, { filename: script });

const port = { postMessage: (answer) => fs.writeSync(1, answer) };
worker.onmessage({ data: port });
worker.input = fs.readFileSync(0);
// The engine answers in the same call, once it has started, which it does before this task.
setTimeout(() => port.onmessage({ data: vm.runInContext("new Uint8Array(input)", worker) }), 0);
