"""The HTML page in a real Chromium, from disk, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.report.test_web_page import page_of, ranked, report, timeline
from tests.support.browser import chromium, errors, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    typical = structs.replace(timeline(8, pieces=36), global_step=9, step_ms=36.0, typical=True)
    path.write_text(page_of(report(ranked(8), timeline(8), typical)), encoding="utf-8")
    return path


def span(browser: Any) -> tuple[float, float]:
    canvas = browser.find_element("css selector", "canvas.lanes")
    return float(canvas.get_attribute("data-from")), float(canvas.get_attribute("data-to"))


def act(browser: Any) -> Any:
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = browser.find_element("css selector", "canvas.lanes")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    return ActionChains(browser, duration=0), canvas


def over(canvas: Any, share: float, lane: int, lanes: int = 8) -> tuple[int, int]:
    """Where `share` of the step of a lane is, from the middle of the canvas, in pixels."""
    wide, tall = canvas.size["width"], canvas.size["height"]
    return round(92 + share * (wide - 100) - wide / 2), round((lane + 0.5) * (tall - 26) / lanes - tall / 2)


@pytest.mark.parametrize("width", [1440, 820, 390])
def test_no_error_and_nothing_wider_than_the_window(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    assert errors(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.querySelectorAll('.plot canvas').length") == 2


def test_hovering_says_who_waits_for_whom(browser: Any, page: Path) -> None:
    opened(browser, page)
    actions, canvas = act(browser)
    # Pieces of 1 ms in a step of 40 ms: the second one of each rank waits for rank 0.
    actions.move_to_element_with_offset(canvas, *over(canvas, 1.5 / 40, 3)).perform()
    said = browser.find_element("css selector", ".status").text
    assert said == "rank 3 on gpu-0.cluster.example.org: waits for rank 0, 1.00 ms (from 1.00 ms to 2.00 ms)"
    assert browser.find_element("css selector", ".tip").text == said


def test_dragging_zooms_and_a_double_click_shows_all(browser: Any, page: Path) -> None:
    opened(browser, page)
    actions, canvas = act(browser)
    assert span(browser) == (0.0, 40.0)
    first, last = over(canvas, 0.25, 2), over(canvas, 0.5, 2)
    actions.move_to_element_with_offset(canvas, *first).click_and_hold()
    actions.move_by_offset(last[0] - first[0], 0).release().perform()
    assert span(browser) == (pytest.approx(10.0, abs=0.2), pytest.approx(20.0, abs=0.2))
    act(browser)[0].double_click(canvas).perform()
    assert span(browser) == (0.0, 40.0)


def test_the_keyboard_moves_zooms_and_pans(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page)
    _, canvas = act(browser)
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "rank 0" in browser.find_element("css selector", ".status").text
    canvas.send_keys(Keys.ARROW_DOWN)
    assert "rank 1 " in browser.find_element("css selector", ".status").text
    canvas.send_keys("+")
    assert span(browser) == (pytest.approx(8.0), pytest.approx(32.0))  # 0.6 of it around the middle
    canvas.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT)
    canvas.send_keys("0")
    assert span(browser) == (0.0, 40.0)


def test_a_typical_step_can_be_chosen(browser: Any, page: Path) -> None:
    opened(browser, page)
    figure = browser.find_element("css selector", "canvas.lanes").find_element("xpath", "..")
    longest, typical = figure.find_elements("css selector", "[data-step]")
    assert (longest.text, typical.text) == ("slowest: step 7, 40.0 ms", "typical: step 9, 36.0 ms")
    browser.execute_script("arguments[0].click()", typical)
    assert span(browser) == (0.0, 36.0)
    assert [one.get_attribute("aria-pressed") for one in (longest, typical)] == ["false", "true"]
    about = figure.find_element("css selector", ".note").text
    assert about == "step 9: 36.0 ms; the median is 39.0 ms"
    browser.execute_script("arguments[0].click()", longest)
    assert span(browser) == (0.0, 40.0)
    assert errors(browser) == []


def test_lines_zoom_and_show_values(browser: Any, page: Path) -> None:
    opened(browser, page)
    scale = "const x = document.querySelector('[data-plot=steps]').plot.scales.x; return [x.min, x.max]"
    assert browser.execute_script(scale) == [0, 479]
    from selenium.webdriver.common.action_chains import ActionChains

    place = browser.find_element("css selector", "[data-plot=steps] .u-over")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
    actions = ActionChains(browser, duration=0)
    actions.move_to_element(place).click_and_hold().move_by_offset(100, 0).release().perform()
    low, high = browser.execute_script(scale)
    assert 200 < low < high < 479
    assert "90" in browser.find_element("css selector", "[data-plot=steps] .u-legend").text


def test_dark_and_light_and_print(browser: Any, page: Path) -> None:
    opened(browser, page)
    look = "return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
    light = browser.execute_script(look)
    browser.find_element("id", "theme").click()
    dark = browser.execute_script(look)
    assert (light[0], dark[0]) == ("light", "dark")
    assert light[1] != dark[1]
    assert len(browser.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000
    assert errors(browser) == []


def test_the_data_of_each_chart_is_saved(browser: Any, page: Path, tmp_path: Path) -> None:
    opened(browser, page)
    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior",
        {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False},
    )
    names = {"2node_waterfall", "2node_heat", "2node_timeline", "2node_steps", "2node_monitors"}
    for button in browser.find_elements("css selector", "button[data-csv]"):
        browser.execute_script("arguments[0].click()", button)
        browser.execute_async_script("setTimeout(arguments[0], 50)")
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(
        lambda _: {path.name for path in tmp_path.glob("*.csv")} == {f"{name}.csv" for name in names}
    )
    lines = (tmp_path / "2node_timeline.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "rank,host,doing,start_ms,end_ms,waits_for_rank,global_step"
    assert (
        lines[2] == "0,gpu-0.cluster.example.org,waiting for another rank (not split by cause here),1,2,0,7"
    )
    assert len(lines) == 1 + 8 * (40 + 36)
