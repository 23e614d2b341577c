// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A GC keeps all attachments of containers whose namespace the Docker driver holds. A file that
// cannot be read is an error, because the GC would remove what is left out.
func TestVouched(t *testing.T) {
	run := t.TempDir()
	at := paths.Paths{Run: run, Proc: "/proc"}
	if list, err := vouched(at, "net"); len(list) > 0 || err != nil {
		t.Errorf("without a driver: %v %v", list, err)
	}
	must(t, durable.MakeDir(run, "attachments", "net"))
	must(t, durable.MakeDir(run, "docker", "netns"))
	hold, gone := filepath.Join(at.Holds(), "held"), filepath.Join(at.Holds(), "gone")
	must(t, netns.Create(hold))
	t.Cleanup(func() {
		must(t, netns.Delete(hold))
		must(t, unix.Unmount(at.Holds(), unix.MNT_DETACH)) // Create made the directory a shared mount point
	})
	records := filepath.Join(run, "attachments", "net")
	store := record.New(run)
	for _, r := range [][3]string{{"a", "eth0", hold}, {"a", "eth1", "/run/netns/x"}, {"b", "eth0", gone}, {"c", "eth0", "/run/netns/x"}} {
		must(t, store.Write(&record.Record{Plugin: "p", Owner: owner.Of("net", r[0], r[1]), Network: "net", ContainerID: r[0], IfName: r[1], NetNS: r[2]}))
	}
	must(t, os.WriteFile(filepath.Join(records, "odd"), []byte("{"), 0o600))
	list, err := vouched(at, "net")
	if err != nil || len(list) != 2 || list[0].ContainerID != "a" || list[1].ContainerID != "a" {
		t.Errorf("%v %v", list, err)
	}
	must(t, os.Mkdir(filepath.Join(records, "unreadable"), 0o700))
	if list, err := vouched(at, "net"); err == nil {
		t.Errorf("without one that cannot be read: %v", list)
	}
}
