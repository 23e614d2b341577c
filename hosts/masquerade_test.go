// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// subnet returns the only subnet of the fabric's last input.
func (f *fakeFabric) subnet() (x mesh.Subnet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.self.Subnets) > 0 {
		x = f.self.Subnets[0]
	}
	return x
}

// While a Docker network with the configuration of an earlier release exists, the fabric
// masquerades. For a Docker network with a new configuration it does not.
func TestFormerMasquerade(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	st, err := state.Open(h.dir+"/state", "docker")
	must(t, err)
	old := `{"name":"lan","plugins":[{"type":"bridge","ipMasq":false,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.200.3.0/24"}]]}}]}`
	must(t, st.Networks.Save(&state.Network{ID: "old", Config: []byte(old)}))
	h.start()
	h.block("lan")
	masquerades := func(want bool) func() bool {
		return func() bool { x := h.fabric.subnet(); return x.Network == "lan" && x.Masquerade == want }
	}
	until(t, "the fabric masquerades", masquerades(true))
	must(t, st.Networks.Save(&state.Network{ID: "old", Config: []byte(h.conf("lan"))}))
	until(t, "no Docker network needs it", masquerades(false))
	if !h.fabric.subnet().Unsettled {
		t.Error("a new configuration counts as settled")
	}

	must(t, os.WriteFile(h.dir+"/state/docker/networks/old", []byte("{"), 0o600))
	until(t, "the unreadable file is logged", func() bool { return h.log.has("docker:") })
	past := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(filepath.Join(h.dir, "net.d/lan.conflist"), past, past))
	h.stop()
	h.start()
	until(t, "the fabric's input changed", masquerades(false))
	if !h.fabric.subnet().Unsettled {
		t.Error("it counts as settled while Docker's networks are unknown")
	}
	must(t, st.Networks.Save(&state.Network{ID: "old", Config: []byte(h.conf("lan"))}))
	until(t, "all networks are known and settled", func() bool { return !h.fabric.subnet().Unsettled })
}

func TestSettled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lan.conflist")
	fresh, err := render(&plan{Network: lan(), Blocks: prefixes("10.200.3.0/24")})
	must(t, err)
	ours := string(fresh)
	for _, c := range []struct {
		name, text string
		age        time.Duration
		want       bool
	}{
		{"there is none", "", 0, false},
		{"new", ours, 0, false},
		{"of a while ago", ours, confRest + time.Minute, true},
		{"of an earlier release, that could not be replaced", strings.Replace(ours, "ipMasqOutside", "ipMasq", 1), time.Hour, false},
		{"of another program", strings.Replace(ours, mark, "hand", 1), time.Hour, false},
		{"of tomorrow, by a clock that was wrong", ours, -24 * time.Hour, false},
	} {
		if c.text != "" {
			must(t, os.WriteFile(path, []byte(c.text), 0o644))
			at := time.Now().Add(-c.age)
			must(t, os.Chtimes(path, at, at))
		}
		if got := settled(dir, "lan"); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
