from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lightagentd.llm.runbook.recogniser import Extraction
from lightagentd.llm.runbook.times import take_dates, take_times

NOW = datetime(2025, 11, 22, 15, 30, tzinfo=timezone(timedelta(hours=1)))
"""A Saturday."""


def time_in(text: str) -> str:
    found = Extraction(text=text)
    take_dates(found, NOW)
    take_times(found, NOW)
    return next((token.value for token in found.found), "none")


@pytest.mark.parametrize(
    ("prompt", "time"),
    [
        # a clock time and a day, in any order and apart; a clock time beats a word of the day
        ("since 12:15 after lunch", "today 12:15"),
        ("after lunch the api is slow, errors since 12:15?", "today 12:15"),
        ("since lunch at 12:15", "today 12:15"),
        ("after lunch the errors began (12:15), which", "today 12:15"),
        ("between 14:00 and now", "today 14:00"),
        ("errors since lunch", "today 12:00"),
        ("after yesterday's lunch break", "yesterday"),
        ("since the deploy at 9:40", "today 09:40"),
        ("nginx errors yesterday since the deploy at 9:40", "yesterday 09:40"),
        ("yesterday nginx was slow, any errors since 14:00", "yesterday 14:00"),
        ("since 8 this morning", "today 08:00"),
        ("at 3 in the afternoon", "today 15:00"),
        ("since this morning 8:30", "today 08:30"),
        ("yesterday noon", "yesterday 12:00"),
        ("around noon", "today 12:00"),
        ("since midnight", "today"),
        ("between 2 and 3pm", "today 14:00"),
        ("between 2 and 3pm yesterday", "yesterday 14:00"),
        ("between 11am and 1pm", "today 11:00"),
        ("between 11 and 1pm", "today 11:00"),
        ("from 14:00 to 15:30", "today 14:00"),
        ("between 2 and 3 machines", "none"),
        ("since 12 pm", "today 12:00"),
        ("since 9", "today 09:00"),
        ("at 13 pm", "none"),
        ("at 99:99", "none"),
        ("since 95%", "none"),
        ("on port 1400", "none"),
        ("yesterday at 22:10:05", "yesterday 22:10"),
        # spans
        ("for the last 90 seconds", "-90s"),
        ("in the last minute", "-1min"),
        ("since an hour ago", "-1h"),
        ("errors -1h", "-1h"),
        ("--since -30min", "-30min"),
        ("errors of nginx -2d", "-2d"),
        ("worker-2d is slow", "none"),
        ("since 2 hours", "-2h"),
        ("for two days", "-2d"),
        ("in a minute", "none"),
        ("past 3 weeks", "-21d"),
        ("last 24h", "-24h"),
        ("the last 0 hours", "none"),
        # dates
        ("since 22.11.2025", "2025-11-22"),
        ("seit 20.11.", "2025-11-20"),
        ("seit 24.12.", "2024-12-24"),
        ("since 22.11.2025 14:03", "2025-11-22 14:03"),
        ("on 21/11/2025", "2025-11-21"),
        ("on 11/21/2025", "2025-11-21"),
        ("since 31.2.2025", "none"),
        ("since sun", "none"),
        ("on friday 9am", "2025-11-21 09:00"),
        ("since the 3rd of november", "2025-11-03"),
        ("since 24 december", "2024-12-24"),
        ("since May 3, 2024", "2024-05-03"),
        # stamps of logs
        ("Nov 22 14:03:11 web1 nginx[77]: upstream timed out", "2025-11-22 14:03"),
        ("Dec  1 04:03:11 web1 kernel: oops", "2024-12-01 04:03"),
        ("2025-11-22T14:03:11.123456+01:00 web1 nginx: failed", "2025-11-22 14:03"),
        ("2025-11-22T14:03:11Z nginx failed", "2025-11-22 15:03"),
        ("[2025-11-22 14:03:11,123] ERROR", "2025-11-22 14:03"),
        # German
        ("seit gestern 14 Uhr", "yesterday 14:00"),
        ("seit heute morgen", "today"),
        ("letzte Nacht", "yesterday"),
        ("was ist heute Nacht passiert", "yesterday"),
        ("fehler in der letzten Stunde", "-1h"),
        ("in den letzten zwei Stunden", "-2h"),
        ("vor 5 Minuten", "-5min"),
        ("seit einer halben Stunde", "-30min"),
        ("zwischen 14 und 15 Uhr", "today 14:00"),
        ("ab 14.30 Uhr", "today 14:30"),
        ("seit Montag", "2025-11-17"),
        ("seit dem 3. Mai", "2025-05-03"),
        ("seit dem letzten Neustart", "boot"),
        ("vorgestern", "2025-11-20"),
        ("diese Woche", "-7d"),
        ("was ist hier los", "none"),
        ("um 8 Prozent", "none"),
        # French
        ("depuis ce matin", "today"),
        ("depuis hier 14h", "yesterday 14:00"),
        ("les erreurs d'hier", "yesterday"),
        ("depuis 9h30", "today 09:30"),
        ("il y a 2 heures", "-2h"),
        ("depuis deux heures", "-2h"),
        ("ces 2 dernières heures", "-2h"),
        ("la nuit dernière", "yesterday"),
        ("la semaine dernière", "-7d"),
        ("depuis lundi", "2025-11-17"),
        ("depuis le dernier redémarrage", "boot"),
        ("depuis le 3 mai", "2025-05-03"),
        ("aujourd'hui", "today"),
        # Spanish
        ("desde ayer", "yesterday"),
        ("hace dos horas", "-2h"),
        ("desde hace 2 horas", "-2h"),
        ("en las últimas dos horas", "-2h"),
        ("desde las 9:30", "today 09:30"),
        ("desde ayer a las 3 de la tarde", "yesterday 15:00"),
        ("anoche", "yesterday"),
        ("esta mañana", "today"),
        ("la semana pasada", "-7d"),
        ("desde el último arranque", "boot"),
        ("desde el lunes", "2025-11-17"),
        # Portuguese
        ("desde ontem às 9h", "yesterday 09:00"),
        ("há 2 horas", "-2h"),
        ("nas últimas 3 horas", "-3h"),
        ("hoje de manhã", "today"),
        ("desde ontem à noite", "yesterday"),
        ("desde segunda-feira", "2025-11-17"),
        ("na semana passada", "-7d"),
        ("desde o último boot", "boot"),
        # no times
        ("the second disk is full", "none"),
        ("which day is it", "none"),
        ("may the disk be full", "none"),
        ("top 5 processes", "none"),
    ],
)
def test_a_time_is_normalized(prompt: str, time: str) -> None:
    assert time_in(prompt) == time


def test_all_times_of_a_prompt_are_one_and_other_words_stay() -> None:
    found = Extraction(text="nginx errors yesterday evening after the update of db1, since 21:00")
    take_times(found, NOW)

    left = found.text.replace("\ue000", "").split()
    assert left == ["nginx", "errors", "after", "the", "update", "of", "db1,"]
    assert {token.value for token in found.found} == {"yesterday 21:00"}


def test_a_prompt_about_the_reboot_keeps_the_word() -> None:
    found = Extraction(text="is nginx fine after the last reboot?")
    take_times(found, NOW)

    assert found.text.replace("\ue000", "").split() == ["is", "nginx", "fine", "reboot?"]
    assert [token.value for token in found.found] == ["boot"]
