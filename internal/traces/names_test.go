// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/spec"
)

// Names finds the names of an owner wherever they are written, also if the id has the separator in it.
func TestNames(t *testing.T) {
	p := paths.Paths{CNI: t.TempDir(), RunCNI: t.TempDir(), Run: t.TempDir()}
	n := Node{Paths: p, Patterns: []string{filepath.Join(p.RunCNI, "tuning", "*_*.json")}}
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	results, backups, addresses := filepath.Join(p.CNI, "results"), filepath.Join(p.RunCNI, "tuning"), filepath.Join(p.CNI, "networks", "net-a")
	write(results, "net-a-in-result-eth0", "")
	write(results, "net-a-x-in-result-eth0", "") // of this network, or of net-a-x
	write(backups, "in_backup_net_1.json", "")
	write(addresses, "10.0.0.2", "in-address\r\neth0")
	write(addresses, "10.0.0.3", "without interface")
	for _, c := range []struct{ network, id, ifName, comment string }{
		{"net-a", "in-result", "eth0", ""},
		{"net-a", "x-in-result", "eth0", ""},
		{"net-a-x", "in-result", "eth0", ""},
		{"net-a", "in_backup", "net_1", ""},
		{"net-a", "in-address", "eth0", ""},
		{"net-a", "in-comment", "eth0", "net-a/in-comment/eth0"},
	} {
		o := owner.Of(c.network, c.id, c.ifName)
		got := n.Names(c.network, o, []nft.Element{{Comment: string(o) + " " + c.comment}, {Comment: string(o) + " net-a/others/eth0"}})
		if want := (spec.AttachmentKey{ContainerID: c.id, IfName: c.ifName}); got != want {
			t.Errorf("%s of %s: %q", c.id, c.network, got)
		}
	}
	if got := n.Names("net-a", owner.Of("net-a", "nowhere", "eth0"), nil); got != (spec.AttachmentKey{}) {
		t.Errorf("names without a trace: %q", got)
	}
	if got := n.Files(spec.AttachmentKey{ContainerID: "in_backup", IfName: "net_1"}); len(got) != 1 || filepath.Base(got[0]) != "in_backup_net_1.json" {
		t.Errorf("files of an attachment: %q", got)
	}
	if got := n.Files(spec.AttachmentKey{ContainerID: "nowhere", IfName: "eth0"}); got != nil {
		t.Errorf("files without a trace: %q", got)
	}
}

// A comment that was cut no longer proves the owner, only the network.
func TestOfNetwork(t *testing.T) {
	long := strings.Repeat("x", nft.MaxComment)
	for _, c := range []struct {
		network, id string
		of, want    bool // of its own network
	}{
		{"net", "c1", true, true},
		{"net", "c1", false, false},
		{"net", long, true, true},
		{"net", long, false, false},
	} {
		o := owner.Of(c.network, c.id, "eth0")
		comment, network := nft.Comment(string(o), c.network, c.id, "eth0"), c.network
		if !c.of {
			network = "another"
		}
		if got := (Scope{Network: network}).has(o, comment); got != c.want {
			t.Errorf("%.20s of %s: %v", comment, network, got)
		}
	}
	if o := owner.Of("net", "c1", "eth0"); (Scope{Network: "net"}).has(o, nft.Comment(string(o), "net", "c2", "eth0")) {
		t.Error("the names are not the owner's")
	}
	if o := owner.Of("net", "c1", "eth0"); (Scope{Network: "net"}).has(o, string(o)+" net") {
		t.Error("a comment without names")
	}
}

// A scope of an owner has nothing of others.
func TestOfOwner(t *testing.T) {
	o, other := owner.Of("net", "c1", "eth0"), owner.Of("net", "c2", "eth0")
	comment := nft.Comment(string(o), "net", "c1", "eth0")
	for s, want := range map[Scope]bool{
		{}: true, {Owner: o}: true, {Owner: other}: false, {Owner: o, Network: "net"}: true, {Owner: o, Network: "another"}: false,
	} {
		if got := s.has(o, comment); got != want {
			t.Errorf("%+v: %v", s, got)
		}
	}
}
