// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vouched

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Attachments lists all attachments of containers whose namespace is held. A file that
// cannot be read is an error, as a GC removes anything that is left out.
func TestAttachments(t *testing.T) {
	run := t.TempDir()
	if list, err := Attachments(run, "net", "/proc"); len(list) > 0 || err != nil {
		t.Errorf("without a driver: %v %v", list, err)
	}
	must(t, durable.MakeDir(run, "attachments", "net"))
	must(t, durable.MakeDir(run, "docker", "netns"))
	hold, gone := filepath.Join(Holds(run), "held"), filepath.Join(Holds(run), "gone")
	must(t, netns.Create(hold))
	t.Cleanup(func() {
		must(t, netns.Delete(hold))
		must(t, unix.Unmount(Holds(run), unix.MNT_DETACH)) // Create makes it a shared mount
	})
	records := filepath.Join(run, "attachments", "net")
	for i, r := range [][3]string{{"a", "eth0", hold}, {"a", "eth1", "/run/netns/x"}, {"b", "eth0", gone}, {"c", "eth0", "/run/netns/x"}} {
		text := fmt.Sprintf(`{"containerID":%q,"ifname":%q,"netns":%q}`, r[0], r[1], r[2])
		must(t, os.WriteFile(filepath.Join(records, fmt.Sprint(i)), []byte(text), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(records, "odd"), []byte("{"), 0o600))
	list, err := Attachments(run, "net", "/proc")
	if err != nil || len(list) != 2 || list[0].ContainerID != "a" || list[1].ContainerID != "a" {
		t.Errorf("%v %v", list, err)
	}
	must(t, os.Mkdir(filepath.Join(records, "unreadable"), 0o700))
	if list, err := Attachments(run, "net", "/proc"); err == nil {
		t.Errorf("without one that cannot be read: %v", list)
	}
}
