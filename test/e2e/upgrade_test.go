// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/patchbay-net/patchbay/test/nettest/leak"
)

// earlier are the attachments in the state that commit 17baa13 left.
var earlier = []struct {
	network, ns, ifname string
	addr                netip.Addr
	port                uint16 // published; 0: none
}{
	{"chain", "one", "eth0", netip.MustParseAddr("198.18.7.2"), 18081},
	{"one", "three", "eth0", netip.MustParseAddr("198.18.8.2"), 18083},
	{"lan", "four", "eth1", netip.MustParseAddr("198.18.9.5"), 0},
}

// uplink is the node's own address in that state.
var uplink = netip.MustParseAddr("192.0.2.2")

// TestUpgrade puts this build on a node whose containers a build of commit 17baa13 attached. This
// build finds nothing wrong. The containers' traffic flows before and after this build writes its
// own table. No address or port is given out twice, and DEL leaves nothing.
func TestUpgrade(t *testing.T) {
	onNode(t, func(t *testing.T) {
		before := leak.Must(t)
		replay(t, "testdata/upgrade/17baa13.txtar")
		for _, a := range earlier[:2] {
			serve(t, a.ns, 80)
		}
		flows(t)
		healthy(t)
		five := addBeside(t)
		flows(t)
		healthy(t)
		cli(t, "del", "chain", five)
		for _, a := range earlier {
			cli(t, "del", a.network, a.ns, "-i", a.ifname)
		}
		for _, a := range earlier[:2] {
			refused(t, "", uplink, a.port)
		}
		cli(t, "gc")
		run(t, "ip", "link", "del", "up0")
		run(t, "ip", "link", "del", "up-br0") // a bridge stays, as the reference's
		leak.NoLeaks(t, before)
	})
}

// cli runs a command of this build.
func cli(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, patchbay(), args...)
}

// flows sends traffic to each container, and through its published port.
func flows(t *testing.T) {
	t.Helper()
	for _, a := range earlier[:2] {
		reaches(t, "", a.addr, 80, noAddr)
		reaches(t, "", uplink, a.port, noAddr)
	}
}

// healthy fails the test if this build finds anything wrong on the node, or to remove.
func healthy(t *testing.T) {
	t.Helper()
	for _, a := range earlier {
		cli(t, "check", a.network, a.ns, "-i", a.ifname)
	}
	cli(t, "repair")
	cli(t, "gc")
	cli(t, "doctor")
}

// addBeside attaches one more container to the first network and returns its namespace. An
// address or a port of an earlier container is refused.
func addBeside(t *testing.T) string {
	t.Helper()
	newNamespace(t, "five")
	for _, taken := range []string{"--publish=18081:80", "--ip=198.18.7.2"} {
		if out, err := exec.Command(patchbay(), "add", "chain", "five", taken).CombinedOutput(); err == nil {
			t.Errorf("%s was given out twice:\n%s", taken, out)
		}
	}
	cli(t, "add", "chain", "five")
	return "five"
}

// replay makes the links of a recorded node, loads its table and writes its files.
func replay(t *testing.T, recording string) {
	t.Helper()
	record, err := txtar.ParseFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range record.Files {
		path := "/" + f.Name
		if !strings.Contains(f.Name, "/") {
			path = filepath.Join(dir, f.Name)
		}
		path, data := recorded(t, path, f.Data)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-x", "links.sh")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// recorded returns the path and the bytes of a file that the archive cannot hold as it is.
// Indexes are binary, and reservations have no line feed at their end.
func recorded(t *testing.T, path string, data []byte) (string, []byte) {
	t.Helper()
	name, packed := strings.CutSuffix(path, ".gz")
	switch {
	case strings.HasPrefix(path, "/var/lib/cni/networks/"):
		return path, bytes.ReplaceAll(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"), []byte("\r\n"))
	case !packed:
		return path, data
	}
	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return name, plain
}
