"""What runs, or gives away a right or a secret, where a tree is a home or the root of a system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandlift.audit.rules import Check, Hit, Rule, rule
from sandlift.audit.tools import search

_TOKEN = re.compile(rb"_(?:authToken|auth|password)\s{0,20}=\s{0,20}[^\s$][^\n]{3}")
_AUTHS = re.compile(rb'"(?:auth|identitytoken|registrytoken|password)"\s{0,20}:\s{0,20}"[^"\n]')
_SERVICE_ACCOUNT = re.compile(rb'"type"\s{0,20}:\s{0,20}"(?:service_account|authorized_user|external_account)"')


def _contains(pattern: re.Pattern[bytes]) -> Check:
    """Returns a check that tells that something is there, and nothing of it."""

    def check(data: bytes) -> Iterator[Hit]:
        if pattern.search(data) is not None:
            yield "", b""

    return check


SHELL_FILES: Final = (
    rule(
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin"
        " .zlogout .kshrc .mkshrc .cshrc .tcshrc .login .logout .xonshrc .config/fish/config.fish"
        " .config/fish/conf.d/* .config/fish/functions/* .bashrc.d/* .oh-my-zsh/custom/*.zsh .config/nushell/config.nu"
        " .config/nushell/env.nu .pam_environment .envvars .inputrc",
        "shell",
        "a shell runs it at its start, where this is a home",
    ),
    rule(
        ".xinitrc .xsession .xprofile .xsessionrc .xserverrc .hushlogin",
        "shell",
        "a desktop runs it at its start, where this is a home",
        but=".hushlogin",
    ),
    rule(
        "etc/profile etc/profile.d/* etc/bash.bashrc etc/zsh/* etc/environment etc/ld.so.preload",
        "shell",
        "read at every login, where this is a system",
    ),
)

STARTUP_FILES: Final = (
    rule(
        ".config/systemd/user/*.service .config/systemd/user/*.timer .config/systemd/user/*.socket"
        " .config/systemd/user/*.path .local/share/systemd/user/*.service .local/share/systemd/user/*.timer"
        " systemd/system/*.service systemd/system/*.timer default.target.wants/* multi-user.target.wants/*",
        "startup",
        "systemd starts it, where this is a home or a system",
    ),
    rule(
        ".config/autostart/*.desktop etc/xdg/autostart/*.desktop .config/plasma-workspace/env/*",
        "startup",
        "a desktop starts it at login, where this is a home",
    ),
    rule(".local/share/applications/*.desktop *.desktop", "startup", "a desktop runs it when it is opened"),
    rule("library/launchagents/*.plist launchdaemons/*.plist", "startup", "macOS starts it, where this is a home"),
    rule("*.command *.lnk *.url *.hta autorun.inf", "startup", "a desktop runs it when it is opened"),
    rule(
        "var/spool/cron/* spool/cron/crontabs/* crontab .crontab etc/cron.d/* etc/cron.daily/* etc/cron.hourly/*"
        " etc/cron.weekly/* etc/cron.monthly/* etc/anacrontab spool/cron/atjobs/*",
        "startup",
        "cron runs it, where this is a system or once it is installed",
        but=".placeholder",
    ),
)

ACCESS_FILES: Final = (
    rule(
        ".ssh/authorized_keys .ssh/authorized_keys2",
        "access",
        "lets others log in, where this is a home",
        severity="privilege",
    ),
    rule(".ssh/rc .ssh/environment", "access", "sshd runs or reads it at login, where this is a home"),
    rule(
        ".ssh/config",
        "access",
        "ssh runs programs that it names",
        search(
            rb"^\s{0,40}(?:proxycommand|localcommand|knownhostscommand|match[^\n]{0,200}exec|permitlocalcommand|pkcs11provider|securitykeyprovider|include)\b[^\n]{0,200}"
        ),
    ),
    rule(
        ".aws/config .aws/credentials",
        "access",
        "AWS tools run it to get a credential",
        search(rb"^\s{0,40}credential_process\s{0,20}=[^\n]{0,200}"),
    ),
    rule(
        ".kube/config kubeconfig *.kubeconfig",
        "access",
        "kubectl runs it to get a credential",
        search(rb"^\s{0,60}(?:- )?(?:exec|cmd-path|command):[^\n]{0,200}"),
    ),
    rule(
        ".docker/config.json",
        "access",
        "docker runs credential helpers or plugins",
        search(rb'"(?:credsstore|credhelpers|clipluginsextradirs)"[^\n]{0,200}'),
    ),
    rule(
        ".gnupg/gpg-agent.conf .gnupg/gpg.conf",
        "access",
        "gpg runs programs that it names",
        search(
            rb"^\s{0,20}(?:pinentry-program|scdaemon-program|photo-viewer|agent-program|dirmngr-program|keyserver-options)\b[^\n]{0,200}"
        ),
    ),
    rule(
        ".rhosts .shosts etc/sudoers etc/sudoers.d/* .k5login etc/passwd etc/shadow etc/ssh/sshd_config",
        "access",
        "gives rights, where this is a home or a system",
        severity="privilege",
    ),
    rule(
        ".mailcap .mutt/muttrc .muttrc .msmtprc .fetchmailrc .procmailrc .forward",
        "access",
        "mail programs run what it names, where this is a home",
    ),
)

SECRET_FILES: Final = (
    rule(
        "id_rsa* id_dsa* id_ecdsa* id_ed25519*",
        "secrets",
        "a private key of SSH, by its name",
        severity="secret",
        but=".pub",
    ),
    rule(
        "*.p12 *.pfx *.jks *.keystore *.ppk *.kdbx *.kdb",
        "secrets",
        "a store of keys or passwords, by its name",
        severity="secret",
    ),
    rule(
        ".netrc _netrc .git-credentials .config/git/credentials .pypirc .pgpass .my.cnf .mylogin.cnf .vault-token"
        " .htpasswd .s3cfg .boto .rclone.conf rclone/rclone.conf .gem/credentials .cargo/credentials"
        " .cargo/credentials.toml .aws/credentials .aws/cli/cache/* .aws/sso/cache/* .dockercfg .terraformrc"
        " credentials.tfrc.json *.tfstate .config/gh/hosts.yml .config/hub .config/glab-cli/config.yml"
        " gcloud/credentials.db gcloud/access_tokens.db gcloud/application_default_credentials.json"
        " gcloud/legacy_credentials/* .azure/accesstokens.json .azure/msal_token_cache.json .claude/.credentials.json"
        " .codex/auth.json .gemini/oauth_creds.json .config/op/config .composer/auth.json .m2/settings.xml"
        " .m2/settings-security.xml config/master.key wallet.dat .gnupg/secring.gpg .gnupg/private-keys-v1.d/*"
        " .password-store/*.gpg .local/share/keyrings/* .config/sops/age/keys.txt .cache/huggingface/token"
        " .huggingface/token .kaggle/kaggle.json .databrickscfg .snowsql/config .snowflake/connections.toml"
        " .fly/config.yml .config/doctl/config.yaml .config/heroku/* .cf/config.json .subversion/auth/*"
        " logins.json key4.db cookies.sqlite",
        "secrets",
        "credentials, by its name",
        severity="secret",
    ),
    rule(
        ".env .env.* *.env .flaskenv .dev.vars secrets.json secrets.yml secrets.yaml secrets.toml credentials.json"
        " local.settings.json",
        "secrets",
        "settings that may be secrets, by its name",
        severity="secret",
        but=".example .sample .template .dist .defaults .schema .d.ts",
    ),
    rule(".npmrc .yarnrc.yml", "secrets", "a token of a package registry", _contains(_TOKEN), severity="secret"),
    rule(
        ".docker/config.json .dockerconfigjson containers/auth.json",
        "secrets",
        "a login to a container registry",
        _contains(_AUTHS),
        severity="secret",
    ),
    rule(
        ".kube/config kubeconfig *.kubeconfig kubeconfig.yaml kubeconfig.yml",
        "secrets",
        "a login to Kubernetes, by its name",
        severity="secret",
    ),
    rule("*.json", "secrets", "an account of Google", _contains(_SERVICE_ACCOUNT), severity="secret"),
    rule(
        ".bash_history .zsh_history .sh_history .ash_history .python_history .node_repl_history .psql_history"
        " .mysql_history .sqlite_history fish_history .lesshst",
        "secrets",
        "a history, which often holds secrets",
        severity="secret",
    ),
)

RULES: Final[tuple[Rule, ...]] = (*SHELL_FILES, *STARTUP_FILES, *ACCESS_FILES, *SECRET_FILES)
