// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/networks"
	netmirror "github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// killLab is a networksLab whose agent is the real program.
type killLab struct {
	*networksLab
	*process
}

func newKillLab(t *testing.T) *killLab {
	l := &killLab{networksLab: newNetworksLab(t)}
	uplink(t)
	l.process = newProcess(t, l.api)
	l.args = append(l.args, "--cni-conf-dir", l.dir()+"/net.d", "--networks=on", "--networks-bin-dir", l.plugins, "--network-policy=off")
	return l
}

func (l *killLab) dir() string { return l.lab.dir }

// holdsWithin polls until a condition holds, and reports whether it did in time.
func holdsWithin(d time.Duration, holds func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(2 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// round runs the program until it has written a definition and the status of a pod, or kills it.
func (l *killLab) round(definition, pod string, after time.Duration) (died bool) {
	l.cmd = exec.Command(l.args[0], l.args[1:]...)
	must(l.networksLab.T, l.cmd.Start())
	defer l.stop(unix.SIGKILL)
	return !holdsWithin(after, func() bool {
		_, err := netmirror.Definition(paths.Default(), "shop", definition)
		return err == nil && strings.Contains(l.annotation(pod), definition0) && l.conf() != ""
	})
}

// definition0 is the definition that all pods use.
const definition0 = "base"

// The agent is killed at any time: each file of the mirror stays whole, pods start while no agent runs, and in the end each pod has its
// status, written once.
func TestPodNetworksKilled(t *testing.T) {
	l := newKillLab(t)
	l.define(definition0, on(71))
	l.kind(networks.Pods).put(`{"metadata":{"namespace":"shop","name":"first","uid":"u","annotations":{"k8s.v1.cni.cncf.io/network-status":"base"}},"spec":{"nodeName":"n1"}}`)
	kills := nettest.NewKills(t, "a round of the agent")
	kills.Try(func(after time.Duration) bool { return l.round(definition0, "first", after) })
	var pods []string
	for i := 0; kills.More(9); i++ {
		name, definition := fmt.Sprint("web-", i), fmt.Sprint("later-", i)
		l.define(definition, on(72))
		l.pod(name, "u-"+name, definition0)
		l.started("c-"+name, name, "u-"+name, definition0)
		pods = append(pods, name)
		kills.Try(func(after time.Duration) bool { return l.round(definition, name, after) })
		if list, errs := netmirror.Definitions(paths.Default()); len(list) == 0 || len(errs) > 0 {
			t.Fatalf("%d definitions, %v", len(list), errs)
		}
	}
	l.process.start()
	if !holdsWithin(patience, func() bool {
		return !slices.ContainsFunc(pods, func(name string) bool { return !strings.Contains(l.annotation(name), "shop/base") })
	}) {
		t.Error("a pod has no status")
	}
	if got := l.patches(); got != len(pods) {
		t.Errorf("%d requests for %d pods", got, len(pods))
	}
	l.stop(unix.SIGKILL)
	l.clean()
	if netmirror.Written(paths.Default()) {
		t.Error("files are left after clean")
	}
}

// With 1,000 definitions and 110 pods, the agent needs at most 60 MB.
func TestPodNetworksMemory(t *testing.T) {
	l := newKillLab(t)
	l.process.start()
	before := l.settled()
	l.stop(unix.SIGKILL)
	config := strings.Replace(on(71), `"type"`, `"capabilities":{"ips":true},"mtu":1500,"isGateway":false,"ipMasq":false,"promiscMode":false,"vlan":0,"type"`, 1)
	for i := range 1000 {
		l.kind(networks.Definitions).put(fmt.Sprintf(`{"metadata":{"namespace":"ns-%d","name":"net-%d","uid":"%036d","managedFields":[{"manager":%q}]},"spec":{"config":%q}}`, i%50, i, i, strings.Repeat("f", 500), config))
	}
	for i := range 110 {
		l.pod(fmt.Sprint("web-", i), fmt.Sprint("u", i), "net-1")
	}
	l.process.start()
	if !holdsWithin(patience, func() bool { list, _ := netmirror.Definitions(paths.Default()); return len(list) == 1000 }) {
		t.Error("the files are not complete")
	}
	after := l.settled()
	t.Logf("%d kB without definitions, %d kB with 1,000", before, after)
	if after > 60_000 {
		t.Errorf("it needs %d kB", after)
	}
}
