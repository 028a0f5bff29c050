"""Lines of the tools, the Spark connector and the test kit."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MUTANTS: Final = (
    # Tools on a stopped store
    Mutant(
        "tools/store/truncate.py",
        "                scanner.cut(folder, kept * UNIT_SIZE)",
        "                scanner.cut(folder, kept * UNIT_SIZE + UNIT_SIZE)",
        "tools/store/test_rebuild.py",
    ),
    Mutant(
        "tools/store/truncate.py",
        "            self._look()  # a broker may have run since the first look\n",
        "",
        "tools/store/test_rebuild.py",
    ),
    Mutant(
        "tools/store/truncate.py",
        "            if not file.is_full or not 0 <= header.end_offset < self._end:",
        "            if not file.is_full or not 0 <= header.end_offset <= self._end:",
        "tools/store/test_rebuild.py",
    ),
    Mutant(
        "tools/store/backup.py",
        "            if (found, digest) != (each.size, each.sha256):",
        "            if found != each.size:",
        "tools/store/test_backup.py",
    ),
    Mutant(
        "tools/store/backup.py",
        "            and old.modified_ns < self._old_ns\n",
        "",
        "tools/store/test_backup.py",
    ),
    Mutant(
        "tools/store/backup.py",
        "            if run and run[-1][0] + run[-1][1] != start:",
        "            if run and run[-1][0] + run[-1][1] > start:",
        "tools/store/test_backup.py",
    ),
    Mutant(
        "tools/store/verify.py",
        "            if offset <= self._reached:\n                continue\n",
        "            if offset >= 0:\n                continue\n",
        "tools/store/test_verify.py",
    ),
    Mutant(
        "tools/store/salvage.py",
        "            if hole.is_damage and hole.room >= lost.least_size",
        "            if hole.room >= lost.least_size",
        "tools/store/test_salvage.py",
    ),
    # Tools on a running cluster
    Mutant(
        "tools/dlq.py",
        "                if limit is not None and count >= limit:",
        "                if limit is not None and count > limit:",
        "tools/live/test_redrive.py",
    ),
    Mutant(
        "tools/local/ledger.py",
        "            file.truncate(size)  # a line that a kill cut counts as not written\n",
        "",
        "tools/live/test_redrive.py",
    ),
    Mutant(
        "tools/dlq.py",
        '        self._ledger.note(key, "sending", place)\n',
        "",
        "tools/live/test_redrive.py",
    ),
    Mutant(
        "client/admin/dead_letters.py",
        "is_first and copy not in taken:",
        "is_first:",
        "tools/live/test_redrive.py",
    ),
    Mutant(
        "tools/moments.py",
        "moment.replace(tzinfo=UTC)",
        "moment.astimezone()",
        "tools/test_moments.py",
    ),
    Mutant(
        "tools/doctor/checks.py",
        "skew_s = early_s if early_s > 0 else min(0.0, late_s)",
        "skew_s = max(0.0, early_s)",
        "tools/live/test_doctor.py",
    ),
    Mutant(
        "tools/doctor/checks.py",
        "    if count >= APPENDS_MIN and slow > count * SLOW_SHARE:",
        "    if slow > count * SLOW_SHARE:",
        "tools/live/test_doctor.py",
    ),
    # Spark
    Mutant(
        "spark/archive/spans.py",
        "joins_right = place < len(starts) and starts[place] == end",
        "joins_right = False",
        "spark/archive/test_spans.py",
    ),
    Mutant(
        "spark/archive/spans.py",
        "first, last = bisect_right(ends, start), bisect_left(starts, end)",
        "first, last = bisect_left(ends, start), bisect_left(starts, end)",
        "spark/archive/test_spans.py",
    ),
    Mutant(
        "spark/archive/delta_log.py",
        "            self._write_checkpoint()\n            self.make_durable()\n"
        "            self._clean_up()",
        "            self._write_checkpoint()\n            self._clean_up()\n"
        "            self.make_durable()",
        "spark/archive/test_kills.py",
    ),
    Mutant(
        "spark/writing/promises.py",
        "            min(each.seconds for each in windows.values()),",
        "            max(each.seconds for each in windows.values()),",
        "spark/writing/test_promises.py",
    ),
    Mutant(
        "spark/reading/positions.py",
        'if too_far and position.option == "startingOffsets":',
        "if too_far:",
        "spark/reading/test_batch_planner.py",
    ),
    Mutant(
        "spark/reading/ranges.py",
        "self._lose(front.at, available, min(available, self._end))",
        "self._lose(front.at, available, available)",
        "spark/test_pulls_loss.py",
    ),
    Mutant(
        "spark/reading/ranges.py",
        "            if span is not None and (span.first < slot.at or span.last >= slot.end):",
        "            if span is not None and (span.first < slot.at or span.last > slot.end):",
        "spark/reading/test_ranges.py",
    ),
    # Brokers that do not answer
    Mutant(
        "client/admin/base.py",
        "if known is not None and not isinstance(known.error, BrokerError):",
        "if known is not None:",
        "client/admin/test_unanswered.py",
    ),
    Mutant(
        "client/admin/base.py",
        "    if failed and not found:\n",
        "    if not found:\n",
        "client/admin/test_unanswered.py",
    ),
    Mutant(
        "tools/connection.py",
        "if self.output.unanswered and code in (0, NOT_FOUND)",
        "if self.output.unanswered and code == 0",
        "tools/sick/test_commands.py",
    ),
    Mutant(
        "tools/doctor/cli.py",
        "            if not any(refusal_of(str(one.error)) in cause for cause in told)\n",
        "",
        "tools/live/test_doctor.py",
    ),
    # The test kit
    Mutant(
        "skylarkmq/testing/clock.py",
        "            if timer.is_cancelled:\n                self._cancelled_count",
        "            if False:\n                self._cancelled_count",
        "testing/test_clock.py",
    ),
    Mutant(
        "skylarkmq/testing/faults.py",
        "if rule.remaining is not None and rule.remaining < 1:",
        "if rule.remaining is not None and rule.remaining < 0:",
        "testing/test_faults.py",
    ),
)
