"""`lactl chat`: a conversation on a terminal.

    conversation   one chat: its session, what is typed, what is asked; it owns all the rest
    typed          what is typed: prompts, commands, answers and Ctrl-C
    daemon         calls of the daemon, and the watch of a session that outlives the daemon's restarts
    transcript     what happens in the session, on the screen; shows everything exactly once
    catching_up    the stored part of a session: its last messages, and events that nobody watched
    shown          what the screen shows already
    progress       running calls and unfinished text, for the live region
    passages       text as it streams: its finished blocks, and the one that is not finished yet
    folded         what the screen shows folded, whole
    questions      the questions that the person at the terminal has to answer
    startup        which session a chat begins with
    commands       the table of the commands, and which one a line means
    acting         what the commands do; session_acting has those about sessions, looking those that show
                   again what was folded or said, again those that prompt again or begin elsewhere
    bringing       what goes along with a prompt: named files, and the output of the person's own commands
    pasting        pasted blocks, which stand in the typed line as a few words
    completion     what Tab offers
    screen         what the conversation needs of a screen
    prompt_screen  the screen of a terminal that can move its cursor, with prompt-toolkit
    line_screen    the screen of one that cannot, or of no terminal at all

Only `lightagentd.cli.chat` imports this package, and only when a chat begins: rich and prompt-toolkit take
longer to import than the rest of `lactl` takes to run.
"""
