// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/netns"
)

// gc cannot remove a dead container's port from the firewall: only a newer patchbay may, or a rule of the operator
// leads to the reference's chain. The address stays reserved until gc can.
func TestAddressAfterPort(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	schema := func(n uint16) {
		nftTool(t, fmt.Sprintf("flush map inet patchbay schema; add element inet patchbay schema { 0 : %d }", n))
	}
	t.Run("ours", func(t *testing.T) {
		addressAfterPort(t, runtimeOf(), func() (undo func()) {
			schema(nft.Schema() + 1)
			return func() { schema(nft.Schema()) }
		})
	})
	t.Run("the reference's", func(t *testing.T) {
		useIPTables(t, "iptables-nft")
		addressAfterPort(t, runtimeOf(reftest.Plugins(t)), func() (undo func()) {
			dnat := regexp.MustCompile("CNI-DN-[0-9a-f]+").FindString(nftTool(t, "list table ip nat"))
			nftTool(t, "add chain ip nat OPERATOR; add rule ip nat OPERATOR jump "+dnat)
			return func() { nftTool(t, "delete chain ip nat OPERATOR") }
		})
	})
}

func addressAfterPort(t *testing.T, maker *chain.Runtime, hinder func() (undo func())) {
	l, rt := list(t, fmt.Sprintf(everything, "")), runtimeOf()
	warm(t, maker, l)
	before := leak.Must(t)
	path := attach(t, maker, l, "dead", 1)
	addr, _ := strings.CutSuffix(address(t, rt, "dead"), "/32")
	file := filepath.Join(paths.Default().CNI, "networks/every", addr)
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	undo := hinder()
	for range 2 {
		report, err := gc.Run(t.Context(), gc.Options{Paths: paths.Default(), Runtime: rt, NewSession: session, Apply: true})
		if err == nil || removed(report) > 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("the port stays, and the address went: %v", err)
		}
	}
	undo()
	if r := collect(t, rt, nil); removed(r) != 1 {
		t.Errorf("%+v", r.Attachments)
	}
	leak.NoLeaks(t, before)
}

func nftTool(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("nft", command).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
	return string(out)
}

// A network had a driver of Docker's that never came back, and a record still waits for it. Now the network has
// plugins of ours, and the container runs again with its old id. It keeps its interface.
func TestEndedRecordBesideALivingAttachment(t *testing.T) {
	l, rt := list(t, fmt.Sprintf(everything, "")), runtimeOf()
	warm(t, rt, l)
	before := leak.Must(t)
	path := attach(t, rt, l, "again", 1)
	drivers := record.OfDrivers(paths.Default().State)
	ended := record.Record{
		Plugin: "cnm", Network: l.Name, Owner: owner.Of(l.Name, "again", "eth0"), ContainerID: "again", IfName: "eth0", NetNS: path,
		Remote: []byte(`{"driver":{"name":"lab"},"ended":true}`),
	}
	if err := drivers.Write(&ended); err != nil {
		t.Fatal(err)
	}
	drivers.Close()
	if r := collect(t, rt, nil); r.Alive != 1 || removed(r) > 0 {
		t.Errorf("%d alive, %+v", r.Alive, r.Attachments)
	}
	judged, err := gc.Judge(t.Context(), gc.Options{Paths: paths.Default(), Runtime: rt, NewSession: session}, l.Name)
	if err != nil || len(judged.Attachments) != 1 {
		t.Errorf("a GC of the network would keep %+v, %v", judged.Attachments, err)
	}
	if !nettest.HasLink(t, path, "eth0") {
		t.Error("the living container lost its interface")
	}
	if err := drivers.Remove(l.Name, ended.Owner, ended.Plugin); err != nil {
		t.Fatal(err)
	}
	drivers.Close()
	detach(t, rt, l, "again", path)
	leak.NoLeaks(t, before)
}

// A plugin found no namespace at the path that its ADD got, as in the directory of a virtual machine's runtime. That nothing
// is at the path proves nothing, so only the runtime's list shows that the container is dead.
func TestRecordWithoutANamespace(t *testing.T) {
	rt, p := runtimeOf(), paths.Default()
	before := leak.Must(t)
	d := record.New(p.Run)
	err := d.Write(&record.Record{Plugin: "host-local", Network: "plain", Owner: owner.Of("plain", "vm", "eth0"), ContainerID: "vm", IfName: "eth0"})
	d.Close()
	err = errors.Join(err, os.MkdirAll(filepath.Join(p.CNI, "results"), 0o700), os.MkdirAll("/run/netns", 0o755), os.WriteFile(filepath.Join(p.CNI, "results", "plain-vm-eth0"),
		[]byte(`{"kind":"cniCacheV1","containerId":"vm","ifName":"eth0","networkName":"plain","netns":"/run/netns/never"}`), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if r := collect(t, rt, nil); removed(r) != 0 || len(r.Attachments) != 1 || r.Attachments[0].State != gc.Unsure {
		t.Errorf("without a list: %+v", r.Attachments)
	}
	if r := collect(t, rt, map[string]bool{}); removed(r) != 1 {
		t.Errorf("with a list that lacks it: %+v", r.Attachments)
	}
	leak.NoLeaks(t, before)
}

// The records of a container are lost, but not the firewall and its shared facts. gc resets route_localnet before it
// removes the guard of the host's loopback.
func TestLostRecordsOfALocalnet(t *testing.T) {
	const bridge = "gclocal0" // of no other test: the reference leaves route_localnet set
	own := strings.NewReplacer("gc0", bridge, subnet, subnet[:strings.LastIndex(subnet, ".")]+".251", "fd90:", "fd91:")
	l, rt := list(t, own.Replace(fmt.Sprintf(everything, ""))), runtimeOf()
	path := attach(t, rt, l, "lost", 1)
	value := func() string {
		t.Helper()
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + bridge + "/route_localnet")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if value() != "1" {
		t.Fatal("the port is not reached from 127.0.0.1")
	}
	for _, lost := range []string{filepath.Join(paths.Default().Run, "attachments", l.Name), filepath.Join(paths.Default().CNI, "results")} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
	}
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		collect(t, rt, map[string]bool{})
		age(t)
	}
	if value() != "0" {
		t.Error("route_localnet stays without a guard")
	}
}
