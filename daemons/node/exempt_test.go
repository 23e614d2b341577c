// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configMap is a volume with the ConfigMap, as the kubelet writes it: the file is a link to a
// directory that is replaced as a whole.
type configMap struct {
	*lab
	dir string
	n   int
}

func newConfigMap(l *lab) *configMap { return &configMap{lab: l, dir: filepath.Join(l.dir, "volume")} }

func (c *configMap) file() string { return filepath.Join(c.dir, "config") }

// write replaces the content. If text is "", it removes the ConfigMap.
func (c *configMap) write(text string) {
	c.Helper()
	c.n++
	version := fmt.Sprintf("..%d", c.n)
	err := os.MkdirAll(filepath.Join(c.dir, version), 0o700)
	if err == nil && text != "" {
		err = os.WriteFile(filepath.Join(c.dir, version, "config"), []byte(text), 0o600)
	}
	if err == nil {
		err = os.Symlink(version, filepath.Join(c.dir, "..data_tmp"))
	}
	if err == nil {
		err = os.Rename(filepath.Join(c.dir, "..data_tmp"), filepath.Join(c.dir, "..data"))
	}
	if err == nil && c.n == 1 {
		err = os.Symlink("..data/config", c.file())
	}
	if err != nil {
		c.Fatal(err)
	}
}

// start starts an agent that reads the file very often.
func (c *configMap) start() {
	c.Helper()
	c.lab.start(func(o *Options) { o.MasqueradeConfig = c.file() })
}

func (c *configMap) awaitExempt(want string) {
	c.Helper()
	c.await("exempt "+want, func() bool {
		c.fabric.mu.Lock()
		defer c.fabric.mu.Unlock()
		return fmt.Sprint(c.fabric.self.Exempt) == want
	})
}

const clusterExempt = "[10.244.0.0/16 fd00:244::/56]"

// A running agent follows changes of the ConfigMap, and its deletion. A wrong ConfigMap changes
// nothing and is reported.
func TestMasqueradeConfig(t *testing.T) {
	c := newConfigMap(newLab(t, 1, 2))
	c.start()
	c.awaitProblem(masqueradeConfig) // the volume is not mounted
	c.awaitExempt(clusterExempt)
	c.write("")
	c.await("an end", func() bool { return c.trouble.mine()[masqueradeConfig] == "" })
	c.write("nonMasqueradeCIDRs:\n- 10.0.0.0/8\n- 192.168.0.0/16\nmasqLinkLocal: true\nresyncInterval: 60s\n")
	c.awaitExempt("[fd00:244::/56 10.0.0.0/8 192.168.0.0/16]")
	c.write(`{"nonMasqueradeCIDRs": ["172.16.0.0/12", "fd00::/8"], "masqLinkLocal": false, "masqLinkLocalIPv6": false}`)
	const good = "[10.244.0.0/16 172.16.0.0/12 fd00::/8 169.254.0.0/16 fe80::/10]"
	c.awaitExempt(good)
	for text, says := range map[string]string{
		"nonMasqueradeCIDRs: [10.0.0.1/8]":                                  `nonMasqueradeCIDRs "10.0.0.1/8": want the prefix of a network`,
		"nonMasqueradeCIDRs: [example.org]":                                 `"example.org"`,
		"nonMasqueradeCIDR: [10.0.0.0/8]":                                   `unknown field "nonMasqueradeCIDR"`,
		"nonMasqueradeCIDRs: 10.0.0.0/8":                                    "cannot unmarshal",
		"nonMasqueradeCIDRs: [" + strings.Repeat("10.0.0.0/8, ", 257) + "]": "has 257 entries, 256 at most",
		"just text": "cannot unmarshal string into Go value",
		"\x00":      "control characters",
	} {
		c.write(text)
		c.await("a problem with "+says, func() bool { return strings.Contains(c.trouble.mine()[masqueradeConfig], says) })
		c.awaitExempt(good)
	}
	c.await("an Event", func() bool { return c.event(masqueradeConfig) != "" })
	if w := httpRecorder(c.Handler(), "/metrics"); !strings.Contains(w, `patchbay_node_problems{reason="MasqueradeConfigFailed"} 1`) {
		t.Error(w)
	}

	c.stop() // with a wrong file, and without one, an agent starts with the last good one
	c.fabric.self.Exempt = nil
	c.start()
	c.awaitExempt(good)
	c.stop()
	if err := os.Rename(c.dir, c.dir+".gone"); err != nil {
		t.Fatal(err)
	}
	c.fabric.self.Exempt = nil
	c.start()
	c.awaitExempt(good)
	if err := os.Rename(c.dir+".gone", c.dir); err != nil {
		t.Fatal(err)
	}
	c.write("")
	c.awaitExempt(clusterExempt)
	c.await("an end", func() bool { return c.trouble.mine()[masqueradeConfig] == "" })
}

// An agent without the flag does not use the list that an earlier run saved.
func TestNoMasqueradeConfig(t *testing.T) {
	c := newConfigMap(newLab(t, 1, 2))
	c.write("nonMasqueradeCIDRs: [10.0.0.0/8]")
	c.start()
	c.awaitExempt("[fd00:244::/56 10.0.0.0/8]")
	c.stop()
	c.lab.start()
	c.awaitExempt(clusterExempt)
	if _, err := os.Stat(filepath.Join(StateDir(c.opts.Paths), exemptFile)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
