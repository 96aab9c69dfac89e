import argparse
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--path", type=Path, default=Path("/tmp"))
folder = parser.parse_args().path

try:
    entries = [each for each in folder.iterdir() if each.is_file()]
    files = sorted((each.stat().st_mtime, each) for each in entries)
except OSError as err:
    sys.exit(f"{folder} cannot be read: {err.strerror}")
if not files:
    print(f"There are no files in {folder}.")
else:
    days = (time.time() - files[0][0]) / 86400
    print(f"The oldest file in {folder} is {days:.0f} days old.\n")
    for changed, path in files[:10]:
        print(f"- {path.name}: {time.ctime(changed)}")
