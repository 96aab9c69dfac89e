"""That the configuration file which is installed is right in all that it says and shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from lightagentd.config import configuration

SHIPPED = Path(__file__).parents[2] / "packaging/lightagentd.toml"
EXAMPLES = "models.providers"


def test_as_installed_it_changes_nothing(tmp_path: Path) -> None:
    shutil.copy(SHIPPED, tmp_path)
    loaded, origins = configuration.load(tmp_path)
    assert loaded == configuration.Config()
    assert [key for key in origins if "." in key] == []


def test_every_line_that_is_commented_out_shows_the_default(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    shown = re.sub(r"^# (?=\w+ = |\[models\.)", "", text, flags=re.MULTILINE)
    assert shown != text
    (tmp_path / "lightagentd.toml").write_text(shown)
    loaded, origins = configuration.load(tmp_path)
    assert loaded.models.providers["work"].base_url
    defaults = configuration.Config().model_dump()
    keys = [key.split(".") for key in origins if "." in key and not key.startswith(EXAMPLES)]
    assert len(keys) > 8
    for section, name in keys:
        assert getattr(getattr(loaded, section), name) == defaults[section][name], name
