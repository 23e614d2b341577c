// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/life"
)

// A runtime that reads only the head of a record reads the records that this package wrote, and refuses
// those that this package refuses.
func TestHead(t *testing.T) {
	d, r := New(t.TempDir()), sample("c1")
	r.NetNS, r.NetNSMark, r.Runtime = "/run/netns/x", &life.Mark{Dev: 4, Ino: 5, Since: 6, Cookie: 7, Boot: "b"}, "crio"
	if err := d.Write(r); err != nil {
		t.Fatal(err)
	}
	files := d.Files(r.Network, r.Owner)
	if len(files) != 1 {
		t.Fatal(files)
	}
	got, err := files[0].Head()
	if diff := cmp.Diff(r.Head(), got); diff != "" || err != nil || got.Schema != claim.Schema || got.Runtime != "crio" {
		t.Errorf("%v\n%s", err, diff)
	}
	for what, wrong := range map[string]func(*Record){
		"a newer schema":          func(r *Record) { r.Schema++ },
		"another attachment":      func(r *Record) { r.ContainerID = "c2" },
		"another owner":           func(r *Record) { r.Owner = "x" },
		"another plugin's record": func(r *Record) { r.Plugin = "other" },
	} {
		other := *r
		wrong(&other)
		if other.Head().Check(files[0].Path) == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}
