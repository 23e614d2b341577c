// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dist/systemd"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// Commands use the store and the directory of the agent that systemd has started.
func TestServiceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts.env")
	for _, c := range []struct{ text, store, conf string }{
		{"", "file:///state/hosts", usualConfDir},
		{"PATCHBAY_STORE=etcd://10.0.0.1,10.0.0.2/prod\n", "etcd://10.0.0.1,10.0.0.2/prod", usualConfDir},
		{"# PATCHBAY_STORE=etcd://no/no\n; x=y\n\n PATCHBAY_STORE = 'etcd://a/b?x=y' \n", "etcd://a/b?x=y", usualConfDir},
		{"PATCHBAY_STORE=etcd://a/b\nPATCHBAY_HOSTS_OPTIONS=\"--dns --ttl 20s \\\n -conf-dir /etc/x --store etcd://c/d\"\n", "etcd://c/d", "/etc/x"},
		{"nonsense\nPATCHBAY_HOSTS_OPTIONS=--dns=lan\n", "file:///state/hosts", usualConfDir},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		h := &hostsCommand{storeFlag: storeFlag{service: path}, ConfDir: usualConfDir}
		store, err := h.url(paths.Paths{State: "/state"})
		conf, err2 := h.confDir()
		if err != nil || err2 != nil || store != c.store || conf != c.conf {
			t.Errorf("%q: %s %s %v %v", c.text, store, conf, err, err2)
		}
		h.Store, h.ConfDir = "etcd://said", "/said"
		store, _ = h.url(paths.Paths{})
		if conf, _ = h.confDir(); store != "etcd://said" || conf != "/said" {
			t.Errorf("%q: what was said does not count: %s %s", c.text, store, conf)
		}
	}
	if _, err := readService(filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), "--store") {
		t.Errorf("what cannot be read: %v", err)
	}
	if _, err := readService(path + "x"); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}

// The unit reads the same file.
func TestServiceFileIsTheUnits(t *testing.T) {
	text, err := systemd.Units.ReadFile("patchbay-hosts.service")
	if err != nil || !strings.Contains(string(text), "\nEnvironmentFile=-"+serviceFile+"\n") {
		t.Errorf("%s %v", text, err)
	}
}

// leave refuses while an agent runs, because the agent would register the host again at once.
func TestLeaveRefuses(t *testing.T) {
	dir := dockerEnv(t)
	if err := os.MkdirAll(filepath.Join(dir, "state/hosts"), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockState(t.Context(), filepath.Join(dir, "state/hosts"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if code, _, log := hostsSays(t, "leave"); code != 1 || !strings.Contains(log, "another patchbayd hosts runs") || !strings.Contains(log, "systemctl disable --now patchbay-hosts.service") {
		t.Errorf("%d %s", code, log)
	}
}
