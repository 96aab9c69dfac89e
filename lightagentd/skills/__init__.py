"""Skills: folders with a SKILL.md as agentskills.io has it, and for a runbook a script that answers it.

    SKILL.md        front matter and a Markdown body for language models: `front_matter`
    runbook.yaml    optional: the script, its arguments and its effect: `runbook`
    examples.txt    optional: prompts that it answers, arguments marked: `examples`
    scripts/ references/ assets/    whatever the text speaks of

`catalog` loads them.
"""

from lightagentd.skills.arguments import ArgSpec as ArgSpec
from lightagentd.skills.arguments import Kind as Kind
from lightagentd.skills.catalog import SkillCatalog as SkillCatalog
from lightagentd.skills.catalog import load_skill as load_skill
from lightagentd.skills.catalog import load_skills as load_skills
from lightagentd.skills.examples import Example as Example
from lightagentd.skills.examples import Mark as Mark
from lightagentd.skills.examples import read_examples as read_examples
from lightagentd.skills.front_matter import FrontMatter as FrontMatter
from lightagentd.skills.interpreters import SYSTEM_PYTHON as SYSTEM_PYTHON
from lightagentd.skills.runbook import Runbook as Runbook
from lightagentd.skills.skill import SHARED_FOLDER as SHARED_FOLDER
from lightagentd.skills.skill import Skill as Skill
