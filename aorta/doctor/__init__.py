"""What this machine has, and what will work on it. Looks, and changes nothing."""
