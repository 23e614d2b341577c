// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dist/systemd"
	"github.com/patchbay-net/patchbay/internal/test/docpage"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

// TestMain removes what labs share.
func TestMain(m *testing.M) {
	gate.Enter()
	code := m.Run()
	lab.Clean()
	os.Exit(code)
}

// prepare makes what a page takes for granted on a host.
var prepare = map[string]func(*host){
	"docs/docker.md": aLAN,
	"docs/hosts.md":  aCluster,
}

// afterwards checks that a page has done what it says.
var afterwards = map[string]func(*host){
	"docs/hosts.md": nothingLeft,
}

// TestPages runs the pages.
func TestPages(t *testing.T) {
	for _, name := range docpage.Tested {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		steps, err := docpage.Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, kind := range []string{"old", "new"} {
			t.Run(filepath.Base(name)+"/"+kind, func(t *testing.T) {
				h := newHost(t, "docs"+kind, kind)
				if p := prepare[name]; p != nil {
					p(h)
				}
				for _, s := range steps {
					h.step(name, s)
				}
				if look := afterwards[name]; look != nil {
					look(h)
				}
			})
		}
	}
}

// patience is for steps that take a moment, as the page says.
const patience = 3 * time.Minute

// step runs one step; the next ones depend on it.
func (h *host) step(path string, s docpage.Step) {
	h.Helper()
	at := fmt.Sprintf("%s:%d", path, s.Line)
	if s.File != "" {
		h.Write(s.File, s.Text)
		return
	}
	printed, err := h.shell(s.Command)
	for end := time.Now().Add(patience); s.Wait && (err != nil || !s.Matches(printed)) && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		printed, err = h.shell(s.Command)
	}
	if err != nil {
		h.Fatalf("%s: %s: %v\n%s", at, s.Command, err, printed)
	}
	if !s.Matches(printed) {
		h.Errorf("%s: %s printed\n%sand not\n%s", at, s.Command, printed, strings.Join(s.Prints, "\n"))
	}
}

// aLAN gives the host a bridge into a network with a DHCP server.
func aLAN(h *host) {
	h.In("sh", "-ec", `ip link add br0 type bridge; ip link set br0 up
		ip link add to-lan type veth peer name from-br0
		ip link set to-lan master br0 up; ip link set from-br0 master out0 up`)
	server := h.Dnsmasq("--dhcp-range=192.0.2.100,192.0.2.199,255.255.255.0,1h")
	h.Cleanup(server.Stop)
}

// aCluster gives the host what the page expects: an etcd at the addresses that it names. It starts when
// the page has made its certificates; the last file is written at once.
func aCluster(h *host) {
	h.In("sh", "-ec", "for n in 1 2 3; do ip addr add 10.0.0.$n/32 dev lo; done")
	etcd := h.Run("sh", "-ec", `cd "$0"; until [ -s host.pem ]; do sleep 0.1; done
		exec etcd --data-dir "$1" --listen-client-urls https://10.0.0.1:2379 --advertise-client-urls https://10.0.0.1:2379 \
			--listen-peer-urls http://127.0.0.1:2380 --cert-file etcd.pem --key-file etcd.key --trusted-ca-file ca.pem --client-cert-auth`,
		h.work, h.Dir("etcd"))
	h.Cleanup(etcd.Stop)
	h.must(os.CopyFS(h.work+"/daemons/dist/systemd", systemd.Units))
	h.write(h.stub+"/args/patchbay-hosts.service", "--name host1 --data-root "+h.DataRoot())
}

// nothingLeft looks for anything that the agent makes on a host, and in the store.
func nothingLeft(h *host) {
	h.Helper()
	left, err := h.shell(`ls -d /etc/cni/net.d/lan.conflist /var/lib/patchbay/hosts /run/patchbay/mesh/* /etc/patchbay/* 2>/dev/null
		ip -o link | grep -E 'pb-|patchbay-vx'; ip route | grep 10.200; nft list table inet patchbay | grep -E '10.200.|fd00:200:'
		patchbayd hosts --store "etcds://10.0.0.1/prod?ca=ca.pem&cert=host.pem&key=host.key" ls --json | grep -E '"(id|prefix)"'; true`)
	if err != nil || left != "" {
		h.Errorf("left behind: %v\n%s", err, left)
	}
}
