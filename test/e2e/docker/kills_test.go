// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// halting is a plugin that calls another plugin, and waits before or after that call as long as a
// file exists. It reports its process id.
const halting = `#!/bin/sh
name=${0##*/halting-}
halt() {
	f=/run/patchbay/halt/$name.$CNI_COMMAND.$1
	[ -e $f ] || return 0
	echo $$ > $f.reached
	while [ -e $f ]; do sleep 0.05; done
}
halt before
out=$(PLUGINS/$name); code=$?
halt after
printf '%s' "$out"
exit $code
`

// haltnet has a plugin that halts in each part of the chain.
var haltnet = `{"cniVersion":"1.1.0","name":"haltnet","plugins":[{"type":"halting-bridge","bridge":"cnih","isGateway":true,"ipMasq":true,` + ipamOf(99) + `},
	{"type":"halting-firewall"},{"type":"halting-portmap","capabilities":{"portMappings":true}}]}`

// haltingNetwork creates haltnet.
func haltingNetwork(l *lab.Lab) {
	l.Helper()
	for _, name := range []string{"bridge", "firewall", "portmap"} {
		l.Plugin("halting-"+name, halting)
	}
	l.In("mkdir", "-p", "/run/patchbay/halt")
	create(l, "haltnet", haltnet)
}

// phases are the points of a container's life at which a process is killed.
func phases(fn func(plugin, when string)) {
	for _, plugin := range []string{"bridge", "firewall", "portmap"} {
		for _, when := range []string{"before", "after"} {
			fn(plugin, when)
		}
	}
}

// caught runs docker until a plugin halts, calls die, and then kills the plugin.
func caught(l *lab.Lab, plugin, verb, when string, die func(), docker ...string) (wait func()) {
	l.Helper()
	file := "/run/patchbay/halt/" + plugin + "." + verb + "." + when
	l.In("touch", file)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := l.TryDocker(docker...); err != nil { // it may fail, and is tried again
			l.Log(err)
		}
	}()
	l.Eventually(file+" is reached", func() bool {
		return l.Sh("cat "+file+".reached") != "" && !strings.Contains(l.Sh("cat "+file+".reached"), "No such")
	})
	die()
	l.Sh("kill -9 $(cat " + file + ".reached); rm -f " + file + "*")
	return func() { <-done }
}

// starts starts a container until it has its network. If a start fails after Join, a current
// dockerd forgets the container's network, with any driver, and would start the container without
// it. So starts connects the container again.
func starts(l *lab.Lab, name, network string) {
	l.Helper()
	l.Eventually(name+" starts", func() bool {
		if has, err := l.TryDocker("inspect", name, "--format", "{{len .NetworkSettings.Networks}}"); err != nil || has == "0" {
			_, _ = l.TryDocker("network", "connect", network, name)
		}
		if _, err := l.TryDocker("start", name); err != nil {
			return false
		}
		addr, err := l.TryDocker("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", network))
		return err == nil && addr != "" && addr != "invalid IP"
	})
}

// driverKilledAnywhere: wherever the driver is killed, the next one continues correctly,
// and the container starts and stops.
func driverKilledAnywhere(l *lab.Lab) {
	haltingNetwork(l)
	l.Start("c0", "haltnet")
	phases(func(plugin, when string) {
		wait := caught(l, plugin, "ADD", when, l.KillDriver, "run", "-d", "--name", "c1", "--network", "haltnet", "-p", "8080:80", "bb", "httpd", "-f", "-p", "80")
		l.StartDriver()
		wait()
		starts(l, "c1", "haltnet")
		l.Ping("c0", l.Inspect("c1", "haltnet", "IPAddress"))
		l.Fetch(l.Outside(), lab.Host4, "8080")
		wait = caught(l, plugin, "DEL", when, l.KillDriver, "rm", "-f", "c1")
		l.StartDriver()
		wait()
		l.Eventually("c1 is removed", func() bool {
			_, err := l.TryDocker("rm", "-f", "c1")
			return err == nil
		})
	})
	l.Remove("c0")
	l.Gone("driver killed in all phases")
	l.Docker("network", "rm", "haltnet")
}

// bothKilled: dockerd and the driver are killed together while a container starts or stops, in each
// plugin of the chain.
func bothKilled(l *lab.Lab) {
	haltingNetwork(l)
	both := func() {
		l.KillDriver()
		l.KillDocker()
	}
	for _, at := range []struct{ plugin, verb, when string }{
		{"firewall", "ADD", "after"}, {"portmap", "ADD", "before"}, {"firewall", "DEL", "after"}, {"bridge", "DEL", "before"},
	} {
		l.Docker("create", "--name", "c1", "--network", "haltnet", "-p", "8080:80", "bb", "httpd", "-f", "-p", "80")
		argv := []string{"start", "c1"}
		if at.verb == "DEL" {
			l.Docker("start", "c1")
			argv = []string{"stop", "-t", "0", "c1"}
		}
		wait := caught(l, at.plugin, at.verb, at.when, both, argv...)
		wait()
		l.StartDriver()
		l.Up(l.Args...)
		starts(l, "c1", "haltnet")
		l.Fetch(l.Outside(), lab.Host4, "8080")
		l.Remove("c1")
		l.Gone(fmt.Sprintf("both killed %s %s of %s", at.when, at.verb, at.plugin))
	}
	l.Docker("network", "rm", "haltnet")
}

// connectGivenUp: Docker gives up connecting a running container because the driver is
// killed after the gateway has moved. The container keeps its gateway and port.
func connectGivenUp(l *lab.Lab) {
	haltingNetwork(l)
	l.Start("c1", "podnet", "-p", "8080:80")
	connect := []string{"network", "connect", "haltnet", "c1"} // its name sorts before the other's
	for range 2 {
		caught(l, "portmap", "ADD", "before", l.RestartDriver, connect...)()
		l.Fetch(l.Outside(), lab.Host4, "8080")
		l.PingFrom(l.Of("c1"), lab.Outside4)
	}
	l.Docker(connect...)
	l.Fetch(l.Outside(), lab.Host4, "8080")
	l.Docker("network", "disconnect", "haltnet", "c1")
	l.Fetch(l.Outside(), lab.Host4, "8080")
	l.Remove("c1")
	l.Gone("connect given up")
	l.Docker("network", "rm", "haltnet")
}

// TestKilledOld and TestKilledNew kill processes in the middle of calls.
func TestKilledOld(t *testing.T) { killed(t, "old") }

// TestKilledNew is TestKilledOld on a current dockerd.
func TestKilledNew(t *testing.T) { killed(t, "new") }

func killed(t *testing.T, kind string) {
	t.Parallel()
	l := lab.New(t, lab.Options{Name: "pbk" + kind, Kind: kind})
	networks(l)
	each(l, storms(t))
	each(l, []scenario{{"driver", driverKilledAnywhere}, {"both", bothKilled}, {"connect", connectGivenUp}, {"driver absent", driverAbsent}, {"driver later", driverLater}, {"reboot", reboot}})
}
