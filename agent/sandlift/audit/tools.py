"""What editors, agents, package managers and build tools run when a tree is opened, entered, installed or built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from sandlift.audit import git_findings
from sandlift.audit.findings import clip
from sandlift.audit.rules import Check, Hit, Rule, rule
from sandlift.audit.secrets import redact

NPM_LIFECYCLE: Final = (
    "preinstall", "install", "postinstall", "preprepare", "prepare", "postprepare", "dependencies", "prepublish",
)  # fmt: skip
"""What npm runs on ``npm install``, unasked (npm's documentation, "scripts", life cycle scripts)."""
COMPOSER_EVENTS: Final = (
    "pre-install-cmd", "post-install-cmd", "pre-autoload-dump", "post-autoload-dump", "post-root-package-install",
)  # fmt: skip


def search(pattern: bytes, what: str = "") -> Check:
    """Returns a check for a pattern, which must be linear; the detail is the line, without secrets."""
    compiled = re.compile(pattern, re.MULTILINE | re.IGNORECASE)

    def check(data: bytes) -> Iterator[Hit]:
        found = compiled.search(data)
        if found is not None:
            yield what, clip(redact(b" ".join(found[0].split())))

    return check


def _package_json(data: bytes) -> Iterator[Hit]:
    """Lifecycle scripts; of what cannot be read, the names of such scripts alone."""
    try:
        whole = json.loads(data)
        scripts = whole.get("scripts") if isinstance(whole, dict) else None
        names = scripts if isinstance(scripts, dict) else {}
    except (ValueError, RecursionError):
        names = {name: "" for name in NPM_LIFECYCLE if b'"%s"' % name.encode() in data}
    for name in NPM_LIFECYCLE:
        if names.get(name) is not None:
            text = f"{name}: {names[name]}".encode("utf-8", "surrogatepass")
            yield "", clip(redact(text))


def _composer_json(data: bytes) -> Iterator[Hit]:
    for name in COMPOSER_EVENTS:
        if b'"%s"' % name.encode() in data:
            yield "", name.encode()


def _attributes(data: bytes) -> Iterator[Hit]:
    yield from git_findings.attributes(data)


def _settings(data: bytes) -> Iterator[Hit]:
    """What a file in git's language says that runs code; its secrets are told by the rule for those."""
    for severity, what, detail in git_findings.settings(data):
        if severity == "runs-code":
            yield what, detail


def _settings_secrets(data: bytes) -> Iterator[Hit]:
    for severity, what, detail in git_findings.settings(data):
        if severity == "secret":
            yield what, detail


def _settings_rights(data: bytes) -> Iterator[Hit]:
    for severity, what, detail in git_findings.settings(data):
        if severity == "privilege":
            yield what, detail


_JSON_COMMAND = (
    rb'"[^"\n]{0,100}(?:path|command|executable|interpreter|server|binary|args|shell|program)s?"\s{0,20}:[^\n]{0,200}'
)
_GITCONFIGS = ".gitconfig .config/git/config .gitmodules etc/gitconfig .lfsconfig"

GIT_FILES: Final = (
    rule(".gitattributes .config/git/attributes", "git", "", _attributes),
    rule(_GITCONFIGS, "git", "", _settings),
    rule(_GITCONFIGS, "git", "", _settings_secrets, severity="secret"),
    rule(_GITCONFIGS, "git", "", _settings_rights, severity="privilege"),
    rule(".hg/hgrc", "git", "Mercurial runs hooks, aliases and extensions that it names"),
    rule(".jj/repo/config.toml", "git", "Jujutsu runs tools that it names"),
    rule(".githooks/* .husky/*", "git", "a hook, if git's configuration names the folder", but=".md .gitignore"),
)

EDITOR_FILES: Final = (
    rule(
        ".vscode/tasks.json *.code-workspace",
        "editor",
        "VS Code runs a task when the folder is opened and trusted",
        search(rb'"runOn"\s{0,20}:\s{0,20}"folderOpen"'),
    ),
    rule(
        ".vscode/settings.json *.code-workspace",
        "editor",
        "settings of VS Code that name programs",
        search(_JSON_COMMAND),
    ),
    rule(".vscode/launch.json .vscode/mcp.json", "editor", "VS Code runs it on request"),
    rule(".vscode/tasks.json", "editor", "VS Code runs its tasks on request"),
    rule(".idea/runconfigurations/* *.run.xml", "editor", "JetBrains editors run it on request, or before a task"),
    rule(
        ".idea/workspace.xml",
        "editor",
        "JetBrains editors run configurations of it on request",
        search(rb"<component name=\"RunManager\"[^>\n]{0,200}"),
    ),
    rule(
        ".idea/watchertasks.xml .idea/externaldependencies.xml .idea/startup.xml .idea/vcs.xml",
        "editor",
        "JetBrains editors run programs, or load plugins, that it names",
        search(rb"TaskOptions[^\n]{0,100}|<plugin [^\n]{0,100}|configuration [^\n]{0,100}"),
    ),
    rule(".zed/tasks.json .zed/settings.json .zed/debug.json", "editor", "Zed runs programs that it names"),
    rule(".fleet/run.json", "editor", "Fleet runs it on request"),
    rule(
        ".vimrc _vimrc .exrc .nvimrc .nvim.lua .gvimrc .lvimrc .local.vimrc .vim/vimrc .vim/plugin/* .vim/init.vim"
        " .nvim/init.lua .config/nvim/init.lua .config/nvim/init.vim .vimspector.json",
        "editor",
        "vim or nvim runs it where local configuration is on, or in a home",
    ),
    rule(
        ".dir-locals.el .dir-locals-2.el",
        "editor",
        "Emacs evaluates it, if the user agrees",
        search(rb"\beval\b[^\n]{0,200}"),
    ),
    rule(".emacs .emacs.el .emacs.d/init.el .emacs.d/early-init.el .spacemacs", "editor", "Emacs runs it in a home"),
    rule("*.sublime-project", "editor", "Sublime Text runs its build systems on request", search(rb'"build_systems"')),
    rule(
        ".devcontainer.json devcontainer.json",
        "editor",
        "editors run initializeCommand on the host, the rest in a container",
    ),
    rule(".gitpod.yml .replit .idx/dev.nix", "editor", "an online editor runs its tasks"),
)

AGENT_FILES: Final = (
    rule(
        ".claude/settings.json .claude/settings.local.json .cursor/hooks.json .gemini/settings.json"
        " .codex/config.toml .codex/hooks.json .windsurf/hooks.json .kiro/settings.json .qwen/settings.json",
        "agent",
        "a coding agent runs hooks, helpers or servers that it names",
        search(rb'"?(?:hooks|command|apikeyhelper|mcpservers|mcp_servers|statusline|notify|env)[^\n]{0,200}'),
    ),
    rule(
        ".mcp.json mcp.json .cursor/mcp.json .roo/mcp.json .amazonq/mcp.json .kiro/settings/mcp.json opencode.json"
        " .opencode.json",
        "agent",
        "a coding agent starts servers that it names",
        search(rb'"command"[^\n]{0,200}'),
    ),
    rule(
        ".aider.conf.yml",
        "agent",
        "aider runs commands that it names",
        search(rb"^\s{0,20}[\w-]{0,20}(?:cmd|command)s?:[^\n]{0,200}"),
    ),
    rule(".claude/hooks/* .cursor/hooks/* .kiro/hooks/*", "agent", "a hook of a coding agent, if its settings name it"),
)

ENVIRONMENT_FILES: Final = (
    rule(".envrc", "environment", "direnv runs it when the directory is entered, once it is allowed"),
    rule(
        "mise.toml .mise.toml mise.local.toml .mise.local.toml .rtx.toml mise/config.toml .mise/config.toml"
        " .config/mise.toml",
        "environment",
        "mise runs hooks, tasks and templates of it",
    ),
    rule(".tool-versions", "environment", "asdf and mise run plugins for it"),
    rule(".autoenv .autoenv.zsh .autoenv_leave.zsh .in .out .localrc", "environment", "autoenv runs it when entered"),
    rule("shell.nix flake.nix devenv.nix devbox.json", "environment", "Nix tools run its shell hooks"),
    rule(
        ".pdbrc .gdbinit .lldbinit .irbrc .pryrc .rprofile .psqlrc .sqliterc .ghci .ocamlinit .iex.exs .pythonrc"
        " .pythonstartup .perldb .octaverc .juliarc.jl .guile .radare2rc",
        "environment",
        "an interpreter or debugger that is started here runs it",
    ),
    rule(
        ".screenrc .tmux.conf .tmuxinator.yml .lesskey .inputrc .wgetrc .curlrc",
        "environment",
        "a tool obeys it in a home",
    ),
)

PACKAGE_FILES: Final = (
    rule("package.json", "packages", "npm runs it on install", _package_json),
    rule("binding.gyp", "packages", "npm builds it on install, which runs commands in it"),
    rule(
        ".npmrc",
        "packages",
        "settings of npm that name programs or code",
        search(
            rb"^\s{0,20}(?:script-shell|node-options|shell|git|editor|viewer|init-module|globalconfig|prefix|onload-script)\s{0,20}=[^\n]{0,200}"
        ),
    ),
    rule(
        ".yarnrc .yarnrc.yml",
        "packages",
        "yarn runs the code that it names",
        search(rb"^\s{0,20}(?:yarn-?path|plugins|- path|path)\b[^\n]{0,200}"),
    ),
    rule(".pnpmfile.cjs .pnpmfile.js", "packages", "pnpm runs it on install"),
    rule(
        "bunfig.toml", "packages", "bun loads the code that it names", search(rb"^\s{0,20}preload\s{0,20}=[^\n]{0,200}")
    ),
    rule("setup.py", "packages", "pip runs it on install"),
    rule(
        "pyproject.toml",
        "packages",
        "pip runs the build back end in the tree on install",
        search(rb"^\s{0,20}backend-path\s{0,20}=[^\n]{0,200}"),
    ),
    rule("conftest.py", "packages", "pytest runs it before any test"),
    rule("sitecustomize.py usercustomize.py", "packages", "python runs it at every start, if it is on the path"),
    rule(
        "*.pth",
        "packages",
        "python runs it at every start, if it is in site-packages",
        search(rb"^import[ \t][^\n]{0,200}"),
    ),
    rule("composer.json", "packages", "composer runs it on install", _composer_json),
    rule("gemfile *.gemspec", "packages", "bundler runs it on install"),
    rule(".bundle/config", "packages", "bundler obeys it"),
    rule("build.rs", "packages", "cargo runs it on build, and editors build on their own"),
    rule(
        ".cargo/config .cargo/config.toml",
        "packages",
        "cargo runs programs that it names",
        search(rb"^\s{0,20}(?:runner|linker|rustc[\w-]{0,20}|rustdoc|ar|credential-provider|\[alias\])\b[^\n]{0,200}"),
    ),
    rule(
        "rust-toolchain.toml rust-toolchain",
        "packages",
        "rustup runs the tools at that path",
        search(rb"^\s{0,20}path\s{0,20}=[^\n]{0,200}"),
    ),
    rule(
        ".pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml .lefthook.yml",
        "packages",
        "runs on commit, once it is installed",
    ),
)

BUILD_FILES: Final = (
    rule(
        "makefile gnumakefile cmakelists.txt meson.build configure build.gradle build.gradle.kts settings.gradle"
        " settings.gradle.kts gradlew mvnw pom.xml .mvn/extensions.xml rakefile justfile .justfile taskfile.yml"
        " taskfile.yaml noxfile.py tasks.py dodo.py sconstruct wscript workspace.bazel module.bazel .bazelrc"
        " build.xml build.sbt project.clj mix.exs rebar.config package.swift build.zig vagrantfile dockerfile"
        " containerfile docker-compose.yml docker-compose.yaml compose.yml compose.yaml deno.json tox.ini",
        "build",
        "a build tool runs what it says, on request",
    ),
    rule(
        ".eslintrc.js .eslintrc.cjs eslint.config.js eslint.config.mjs eslint.config.cjs eslint.config.ts"
        " .prettierrc.js .prettierrc.cjs .prettierrc.mjs prettier.config.js prettier.config.mjs .stylelintrc.js"
        " stylelint.config.js",
        "editor",
        "a linter runs it, and editors start linters on their own",
    ),
    rule(
        "vite.config.js vite.config.ts vitest.config.ts webpack.config.js rollup.config.js babel.config.js .babelrc.js"
        " jest.config.js jest.config.ts gulpfile.js gruntfile.js next.config.js next.config.mjs postcss.config.js"
        " tailwind.config.js tailwind.config.ts metro.config.js .mocharc.js karma.conf.js playwright.config.ts",
        "build",
        "a build tool runs it, on request",
    ),
)

RULES: Final[tuple[Rule, ...]] = (
    *GIT_FILES, *EDITOR_FILES, *AGENT_FILES, *ENVIRONMENT_FILES, *PACKAGE_FILES, *BUILD_FILES,
)  # fmt: skip
