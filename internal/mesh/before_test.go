// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/owner"
)

// A new node has no masquerade of the mesh. A masquerade of an earlier release stays while an
// attachment may need it, and a flush of the firewall does not end it.
func TestFormerMasquerade(t *testing.T) {
	l := newLab(t)
	h, u := l.hosts[0], setup{Routes, "46"}
	before := u.self(h)
	now, unsettled := u.self(h), u.self(h)
	for i := range now.Subnets {
		now.Subnets[i].Masquerade = false
		unsettled.Subnets[i].Masquerade, unsettled.Subnets[i].Unsettled = false, true
	}
	apply := func(self Self) {
		t.Helper()
		h.do(func() error { return h.mesh.Apply(ctx, self, nil) })
	}
	stands := func(when string, want bool) {
		t.Helper()
		h.do(func() error {
			fw := nft.Open(h.paths.Run)
			defer fw.Close() //nolint:errcheck // a test
			for _, x := range before.Subnets {
				for _, e := range nft.Masquerade(x.Prefix, x.Network) {
					if _, there, err := fw.Get(e.Set, e.Key); there != want || err != nil {
						t.Errorf("%s: %s: %v, %v", when, e, there, err)
					}
				}
			}
			return nil
		})
	}
	apply(now)
	apply(unsettled)
	stands("in a new world", false)

	old := h.attached("old", "bridge")
	apply(before) // an agent of an earlier release
	apply(now)
	stands("beside an attachment without", true)
	h.do(func() error { return flush(h.paths.Run, before) })
	apply(now)
	stands("after a flush", true)
	h.attached("new", "bridge", nft.Masqueraded(netip.MustParsePrefix("10.40.1.9/16"), "")...)
	h.attached("new", "firewall")
	must(t, os.Remove(old))
	apply(unsettled)
	stands("while the configuration is young", true)
	torn := strings.Replace(old, ".bridge", ".ptp", 1)
	must(t, os.WriteFile(torn, []byte("{"), 0o600))
	apply(now)
	stands("beside a record that nobody can read", true)
	must(t, os.Remove(torn))
	apply(now)
	stands("with nobody who counts on it", false)
	h.attached("late", "bridge")
	apply(unsettled)
	stands("once it has gone", false)
}

// flush removes the masquerades from the firewall, as another program might.
func flush(run string, self Self) error {
	fw := nft.Open(run)
	defer fw.Close() //nolint:errcheck // a test
	for _, x := range self.Subnets {
		fw.Remove(nft.Masquerade(x.Prefix, x.Network)...)
	}
	return fw.Commit(ctx)
}

// attached writes a plugin's record of an attachment and returns its path.
func (h *host) attached(id, plugin string, elements ...nft.Element) string {
	h.t.Helper()
	s := record.New(h.paths.Run)
	defer s.Close()
	o := owner.Of("net", id, "eth0")
	must(h.t, s.Write(&record.Record{Plugin: plugin, Owner: o, Network: "net", ContainerID: id, IfName: "eth0", Elements: elements}))
	return filepath.Join(h.paths.Run, "attachments", "net", string(o)+"."+plugin)
}
