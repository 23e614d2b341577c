// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/netns"
)

func recordOf(id string) *leaseFile {
	return &leaseFile{
		Owner: owner.Of("net", id, "eth0"), Network: "net", ContainerID: id, IfName: "eth0",
		Place:   client.Place{NetNS: "/run/netns/x", ID: netns.ID{Dev: 4, Ino: 5}, IfName: "eth0", Index: 7},
		Options: dhcprpc.Options{Provide: []dhcprpc.Option{{Code: 12, Value: []byte("web")}}, Request: []uint8{1, 3}}, Priority: 9,
		V4: &storedAddress{Raw: []byte{1, 2}, Since: 77}, V6: &storedAddress{Lost: true},
	}
}

func TestWriteListRemove(t *testing.T) {
	s, err := openFiles(filepath.Join(t.TempDir(), "run"), "/proc")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := s.list(); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	r := recordOf("c1")
	if err := s.write(r); err != nil {
		t.Fatal(err)
	}
	path := dhcprpc.LeaseFile(s.run, r.Owner)
	for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if fi, err := os.Stat(p); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", p, fi.Mode(), err)
		}
	}
	list, err := s.list()
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], r) {
		t.Errorf("%+v, %v", list, err)
	}
	for range 2 {
		if err := s.remove(r.Owner); err != nil {
			t.Error(err)
		}
	}
	if list, err := s.list(); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// An unusable record is reported and kept. A record of another boot is removed.
func TestBroken(t *testing.T) {
	s := &files{run: t.TempDir(), boot: "now"}
	if err := s.write(recordOf("good")); err != nil {
		t.Fatal(err)
	}
	old := &files{run: s.run, boot: "then"}
	if err := old.write(recordOf("old")); err != nil {
		t.Fatal(err)
	}
	plant := func(id, text string) {
		t.Helper()
		if err := os.WriteFile(dhcprpc.LeaseFile(s.run, owner.Of("net", id, "eth0")), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plant("torn", `{"schema":1,`)
	plant("newer", `{"schema":99}`)
	plant("other", `{"schema":1,"boot":"now","owner":"aaaaaaaaaaaaaaa"}`)
	if err := os.WriteFile(filepath.Join(s.run, dhcprpc.LeaseDir, "keeper.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := s.list()
	if len(list) != 1 || list[0].ContainerID != "good" {
		t.Errorf("%+v", list)
	}
	for _, want := range []string{"unexpected end of JSON input", "schema 99, this program reads up to 1", "it is another attachment's"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := os.Stat(dhcprpc.LeaseFile(s.run, owner.Of("net", "old", "eth0"))); !os.IsNotExist(err) {
		t.Errorf("the lease of another boot: %v", err)
	}
}
