"""What agents may not run, and a name that no model reads."""

from lightagentd.toolkit.hook import block, replace

agents = ["ops"]  # for these agents alone
timeout_s = 1  # of each call
on_error = "go on"  # what an error means; else it blocks


def before_tool_call(payload):
    if "shutdown" in str(payload["args"]):
        return block("this machine is not shut down by agents")
    return None


def after_tool_result(payload):
    text = payload["text"].replace("db-internal-7", "the database")
    return replace({"text": text})
