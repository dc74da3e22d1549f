"""What in a snapshot would run code on, or otherwise harm, a host that opens the restored tree.

A restored tree is a stranger's: an editor, a shell, git or a package manager that is pointed at it runs what it says.
An audit tells what that would be, without running or writing anything.  It is a list to read, not a verdict: what is
on it may be meant well, and what is not on it is not thereby safe.

    findings        the values
    auditor         the run over a snapshot
    git_config      git's configuration language;  git_settings  which settings matter;  git_findings  the rest of git
    rules           rules that know files by their names;  tools, accounts  the rules
    secrets         credentials in files
    names           names that clash or deceive
    contents        bytes of files, from the store
"""

from sandlift.audit.findings import CATEGORIES, SEVERITIES, Audit, Finding

__all__ = ["CATEGORIES", "SEVERITIES", "Audit", "Finding"]
