// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// The ADD of one container is repeated. While the first namespace is alive, the ADD fails. When
// that namespace is gone, the ADD gets the same address.
func TestRepeatedAdd(t *testing.T) {
	n := newNode(t)
	first := filepath.Join(filepath.Dir(n.netns), "first")
	if err := netns.Create(first); err != nil {
		t.Fatal(err)
	}
	defer netns.Delete(first) //nolint:errcheck // deleted below
	second := n.netns
	n.netns = first
	conf := `"subnet":"10.1.0.0/24"`
	n.adds("c1", conf, "", "10.1.0.2/24 via 10.1.0.1")
	n.netns = second
	dup := "failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed"
	for range 2 { // a refused ADD restores the record of the living attachment
		n.fails(spec.Add, "c1", conf, "", spec.CodeInternal, dup)
	}
	if err := netns.Delete(first); err != nil {
		t.Fatal(err)
	}
	n.adds("c1", conf, "", "10.1.0.2/24 via 10.1.0.1")
	n.fails(spec.Add, "c1", conf, "", spec.CodeInternal, dup) // now the container lives in the second namespace
}

// A container's next run uses the path of its namespace again (cnitool, Nomad), or one of the
// host's processes uses the process id again (nerdctl). The first run is over.
func TestRepeatedAddAtTheSamePath(t *testing.T) {
	n := newNode(t)
	conf := `"subnet":"10.1.0.0/24"`
	n.netns = filepath.Join(filepath.Dir(n.netns), "again")
	for range 3 {
		if err := netns.Create(n.netns); err != nil {
			t.Fatal(err)
		}
		n.adds("c1", conf, "", "10.1.0.2/24 via 10.1.0.1")
		n.fails(spec.Add, "c1", conf, "", spec.CodeInternal, "failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed")
		if err := netns.Delete(n.netns); err != nil {
			t.Fatal(err)
		}
	}
}

// An address is not taken from a container of which this process sees another directory of namespaces: what is at the
// path here is not the container's. If this process sees its directory, the other namespace at the path proves death.
func TestHiddenNamespace(t *testing.T) {
	n := newNode(t)
	const conf = `"subnet":"198.18.31.0/24","rangeStart":"198.18.31.2","rangeEnd":"198.18.31.2"`
	n.adds("c1", conf, "", "198.18.31.2/24 via 198.18.31.1")
	// The clock was set, so the file looks old, and its file system cannot store the boot's id.
	file, old := filepath.Join(n.data, "net", "198.18.31.2"), time.Now().Add(-10000*time.Hour)
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("c1\r\neth0"), 0o600), os.Chtimes(file, old, old)); err != nil {
		t.Fatal(err)
	}
	edit := func(change func(*life.Mark)) {
		d := record.New(n.run)
		defer d.Close()
		rec, err := d.Read("net", owner.Of("net", "c1", "eth0"), name)
		if err != nil {
			t.Fatal(err)
		}
		change(rec.NetNSMark)
		if err := d.Rewrite(rec); err != nil {
			t.Fatal(err)
		}
	}
	place := &life.Place{}
	edit(func(m *life.Mark) { m.Ino, m.Place, place = 1, &life.Place{Dev: 1, Ino: 1}, m.Place })
	n.fails(spec.Add, "c2", conf, "", spec.CodeNotAvailable, "failed to allocate for range 0: no IP addresses available in range set: 198.18.31.2-198.18.31.2")
	edit(func(m *life.Mark) { m.Place = place })
	n.adds("c2", conf, "", "198.18.31.2/24 via 198.18.31.1")
}

// A file may look as if it were from before the boot, because the clock was set. Then the traces of its container still count:
// a record, which no reboot leaves, also if it names no namespace or cannot be read, and a cached result beside a record,
// because another program may have attached the container again.
func TestOldFileOfThisBoot(t *testing.T) {
	n := newNode(t)
	const conf = `"subnet":"198.18.43.0/29"`
	dir, living := filepath.Join(n.data, "net"), n.netns
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-10000 * time.Hour)
	d := record.New(n.run)
	defer d.Close()
	for addr, id := range map[string]string{"198.18.43.2": "nowhere", "198.18.43.3": "torn", "198.18.43.4": "again", "198.18.43.5": "dead"} {
		path := filepath.Join(dir, addr)
		if err := errors.Join(os.WriteFile(path, []byte(id+"\r\neth0"), 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
		rec := &record.Record{Plugin: name, Network: "net", Owner: owner.Of("net", id, "eth0"), ContainerID: id, IfName: "eth0"}
		if id == "again" || id == "dead" {
			rec.NetNS, rec.NetNSMark = "/run/netns/none", &life.Mark{Boot: "an earlier boot"}
		}
		if err := d.Write(rec); err != nil {
			t.Fatal(err)
		}
		if id != "torn" {
			continue
		}
		if err := os.WriteFile(d.File("net", rec.Owner, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	n.cache("again", living)
	n.adds("c1", conf, "", "198.18.43.6/29 via 198.18.43.1")
	n.adds("c2", conf, "", "198.18.43.5/29 via 198.18.43.1")
	n.fails(spec.Add, "c3", conf, "", spec.CodeNotAvailable, "failed to allocate for range 0: no IP addresses available in range set: 198.18.43.1-198.18.43.6")
}

// libcni's cache shows the attachments of the reference. No other test uses these addresses,
// because an address in any namespace of the machine is not given out.
func TestReboot(t *testing.T) {
	n := newNode(t)
	dir := filepath.Join(n.data, "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-10000 * time.Hour)
	for name, id := range map[string]string{
		"198.18.29.2": "dead", "198.18.29.3": "cachedalive", "198.18.29.4": "cacheddead", "198.18.29.5": "young", "198.18.29.6": "cachedagain", "198.18.29.8": "cachedhost",
		"198.18.29.9": "inuse",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(id+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		if id != "young" {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.cache("cachedalive", n.netns)
	n.cache("cachedagain", n.netns)
	n.cache("cachedhost", "/proc/self/ns/net")
	n.cache("cacheddead", "/run/netns/none")
	addressInside(t, n.netns, "198.18.29.3/28")
	addressInside(t, n.netns, "198.18.29.9/28") // the clock was set, so the file looks old
	block := filepath.Join(dir, "198.18.29.7")
	if err := os.WriteFile(block, []byte("young\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := `"subnet":"198.18.29.0/28","rangeEnd":"198.18.29.9"`
	n.works(spec.Status, "", conf, "")
	for i, free := range []string{"198.18.29.2", "198.18.29.4", "198.18.29.6", "198.18.29.8"} {
		n.adds(fmt.Sprint("c", i), conf, "", free+"/28 via 198.18.29.1")
	}
	n.fails(spec.Add, "c9", conf, "", spec.CodeNotAvailable, "failed to allocate for range 0: no IP addresses available in range set: 198.18.29.1-198.18.29.9")
	n.works(spec.Check, "cachedalive", conf, "")
	n.works(spec.Check, "young", conf, "")
}

// addressInside gives an address to the loopback of a namespace.
func addressInside(t *testing.T, path, addr string) {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	err = ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, a)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A runtime such as containerd 1.6 caches the namespace only in the result. The attachment is the reference's: there is
// no record.
func TestRepeatedAddOfAnOldCache(t *testing.T) {
	n := newNode(t)
	if err := os.MkdirAll(filepath.Join(n.data, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.data, "net", "10.1.0.7"), []byte("c1\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	const conf = `"subnet":"10.1.0.0/24"`
	n.cacheOld("c1", n.netns)
	n.fails(spec.Add, "c1", conf, "", spec.CodeInternal, "failed to allocate for range 0: 10.1.0.7 has been allocated to c1, duplicate allocation is not allowed")
	n.cacheOld("c1", filepath.Join(filepath.Dir(n.netns), "gone"))
	n.adds("c1", conf, "", "10.1.0.7/24 via 10.1.0.1")
}

func (n *node) cache(id, netns string) {
	n.Helper()
	n.cacheFile(id, fmt.Sprintf(`"netns":%q`, netns))
}

func (n *node) cacheOld(id, netns string) {
	n.Helper()
	n.cacheFile(id, fmt.Sprintf(`"result":{"cniVersion":"1.0.0","interfaces":[{"name":"v0"},{"name":"eth0","sandbox":%q}]}`, netns))
}

func (n *node) cacheFile(id, more string) {
	n.Helper()
	path := filepath.Join(n.cni, "results", "net-"+id+"-eth0")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		n.Fatal(err)
	}
	data := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"net",%s}`, id, more)
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		n.Fatal(err)
	}
}

// A GC's list proves nothing about attachments that were made after the list was begun.
func TestGCLeavesWhatIsNewer(t *testing.T) {
	n := newNode(t)
	const conf = `"subnet":"10.1.0.0/24"`
	early := time.Now().Add(-time.Second).Format(time.RFC3339Nano)
	n.works(spec.Add, "c1", conf, "")
	n.works(spec.GC, "", conf, `"cni.dev/valid-attachments":[],"patchbay/listed":"`+early+`"`)
	n.works(spec.Check, "c1", conf, "")
	n.works(spec.GC, "", conf, `"cni.dev/valid-attachments":[]`)
	n.fails(spec.Check, "c1", conf, "", 999, "host-local: Failed to find address added by container c1")
}
