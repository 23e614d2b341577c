// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The sandbox of a running container has two other processes: a process of a container inside it,
// and a process of a container that starts with `--network container:X`. The sandbox belongs to
// neither. When the network fails, neither is killed.
func TestWhoseSandbox(t *testing.T) {
	n := newNode(t, brokenNet)
	n.onDisk()
	key, owner, guest, inner := n.sandbox(), n.id(), n.id(), n.id()
	dir := filepath.Join(n.opts.DataRoot, "containers")
	writeFile(t, filepath.Join(dir, owner, "config.v2.json"), `{"ID":"`+owner+`","Name":"/owner"}`)
	writeFile(t, filepath.Join(dir, owner, "hostconfig.json"), `{"NetworkMode":"bridge"}`)
	writeFile(t, filepath.Join(dir, guest, "config.v2.json"), `{"ID":"`+guest+`","Name":"/guest"}`)
	writeFile(t, filepath.Join(dir, guest, "hostconfig.json"), `{"NetworkMode":"container:`+owner+`"}`)
	_, pid := startNamed(t, key, "nested")
	n.group(pid, "/docker/"+owner+"/docker/"+inner)
	ended, pid := startInitPid(t, key)
	n.group(pid, "/docker/"+guest)
	c := n.mustStart(run{network: n.network("broken"), key: key, notGW: true})
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	if e.Container != owner || e.Name != "owner" {
		t.Errorf("container %.12s %q", e.Container, e.Name)
	}
	link, err := conn(t, key).LinkByName(c.name)
	must(t, err)
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		t.Error("the interface is up")
	}
	select {
	case err := <-ended:
		t.Errorf("the guest was ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	c.stop(true)
}
