// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// These are the networks of the tests: a network with DNS servers, a chain packed into one plugin
// (`type: patchbay`), and a network without a gateway.
var (
	dnsnet = `{"cniVersion":"1.1.0","name":"dnsnet","plugins":[{"type":"bridge","bridge":"cnid","isGateway":true,
		"dns":{"nameservers":["10.81.0.1"],"search":["pods.example"]},` + ipamOf(81) + `},{"type":"says-args"}]}`
	packednet = `{"cniVersion":"1.1.0","name":"packednet","plugins":[{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[
		{"type":"bridge","bridge":"cnip","isGateway":true,"ipMasq":true,` + ipamOf(82) + `},{"type":"firewall"},
		{"type":"tuning","sysctl":{"net.core.somaxconn":"777"}},{"type":"portmap","capabilities":{"portMappings":true}}]}]}`
	flatnet = `{"cniVersion":"1.1.0","name":"flatnet","plugins":[{"type":"macvlan","master":"out0","capabilities":{"ips":true},"ipam":{"type":"static"}}]}`
)

// saysArgs is a plugin that records its CNI_ARGS.
const saysArgs = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) echo "$CNI_ARGS" >HERE/args; sed 's/.*"prevResult"://; s/,"type":"says-args"}$//' ;;
esac
`

// TestGapsOld uses Debian's dockerd.
func TestGapsOld(t *testing.T) { gaps(t, "old") }

// TestGapsNew uses the current dockerd.
func TestGapsNew(t *testing.T) { gaps(t, "new") }

func gaps(t *testing.T, kind string) {
	t.Parallel()
	l := lab.New(t, lab.Options{Name: "pbgap" + kind, Kind: kind})
	l.Plugin("says-args", saysArgs)
	for name, text := range map[string]string{"dnsnet": dnsnet, "packednet": packednet, "flatnet": flatnet} {
		l.Conf(name, text)
	}
	for _, s := range []struct {
		name string
		fn   func(*lab.Lab)
	}{{"DNS and labels", dnsAndLabels}, {"one plugin", onePlugin}, {"no gateway", noGateway}, {"gc", collected}, {"pruned", pruned}, {"lost", lost}, {"another driver", otherDriver}} {
		t.Run(s.name, func(t *testing.T) {
			inner := l.With(t)
			s.fn(inner)
			inner.Gone(s.name)
			inner.Pools(s.name)
		})
	}
}

func dnsAndLabels(l *lab.Lab) {
	l.Docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=dnsnet", "-o", "cni.dns=replace", "-o", "cni.labels=com.example.", "dnsnet")
	defer l.Docker("network", "rm", "dnsnet")
	run := []string{"run", "--rm", "--network", "dnsnet", "--label", "com.example.role=web", "--label", "other=x", "bb", "cat", "/etc/resolv.conf"}
	l.Docker("run", "-d", "--name", "c1", "bb", "sleep", "1000")
	defer l.Remove("c1")
	before := l.Exec("c1", "cat", "/etc/resolv.conf")
	l.Docker("network", "connect", "dnsnet", "c1") // every version can do this for a running container
	const want = "nameserver 10.81.0.1\nsearch pods.example"
	if got := l.Exec("c1", "cat", "/etc/resolv.conf"); got != want {
		l.Errorf("connected: %q", got)
	}
	l.Docker("network", "disconnect", "dnsnet", "c1")
	if got := l.Exec("c1", "cat", "/etc/resolv.conf"); got == want || !strings.Contains(got, "nameserver") {
		l.Errorf("disconnected: %q, was %q", got, before)
	}
	if l.API < docker28 {
		if text := l.Refused(run...); !strings.Contains(text, "need Docker 28") {
			l.Errorf("before 28: %s", text)
		}
		return
	}
	if got := l.Docker(run...); got != want {
		l.Errorf("resolv.conf is %q", got)
	}
	if text := l.In("cat", l.Dir("here")+"/args"); !strings.Contains(text, ";DOCKER_LABEL_com_example_role=web") || strings.Contains(text, "other") {
		l.Errorf("CNI_ARGS is %q", text)
	}
	if text := l.Refused("run", "--rm", "--network", "dnsnet", "--label", "com.example.x=a;b", "bb", "true"); !strings.Contains(text, "cannot be expressed in CNI_ARGS") {
		l.Errorf("a bad label: %s", text)
	}
}

func onePlugin(l *lab.Lab) {
	l.Docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=packednet", "packednet")
	defer l.Docker("network", "rm", "packednet")
	l.Docker("run", "-d", "--name", "c1", "--network", "packednet", "-p", "8082:80", "bb", "httpd", "-f", "-p", "80")
	defer l.Remove("c1")
	l.Fetch(l.Outside(), lab.Host4, "8082")
	if got := l.Exec("c1", "cat", "/proc/sys/net/core/somaxconn"); l.API >= docker28 && got != "777" {
		l.Errorf("somaxconn is %s", got)
	}
}

// noGateway: on a network without a gateway, Docker 28 gives the subnet's first address to a
// container.
func noGateway(l *lab.Lab) {
	l.Docker("network", "create", "-d", "patchbay", "-o", "cni.network=flatnet", "--subnet", "10.83.0.0/24", "flatnet")
	defer l.Docker("network", "rm", "flatnet")
	want := "10.83.0.2"
	if l.API >= docker28 {
		want = "10.83.0.1"
	}
	l.Start("c1", "flatnet")
	defer l.Remove("c1")
	if got := l.Inspect("c1", "flatnet", "IPAddress"); got != want {
		l.Errorf("the first container has %s, want %s", got, want)
	}
}

// asDocker runs one of our programs with DOCKER_HOST set to this dockerd.
func asDocker(l *lab.Lab, argv ...string) string {
	l.Helper()
	env := []string{"env", "DOCKER_HOST=" + dockerHost(l), "CNI_PATH=" + l.Plugins, "PATH=" + filepath.Dir(l.Patchbayd) + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	return l.In(append(env, argv...)...)
}

func dockerHost(l *lab.Lab) string {
	return "unix://" + l.Socket()
}

// collected: patchbay gc keeps the networks of running containers and removes those of dead ones,
// whether the driver runs or not.
func collected(l *lab.Lab) {
	l.Docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=packednet", "packednet")
	defer l.Docker("network", "rm", "packednet")
	gc := []string{l.Plugins + "/patchbay", "gc", "--from", "docker", "--grace", "0s"}
	for _, driver := range []bool{true, false} {
		l.Start("c1", "packednet", "-p", "8082:80")
		if out := asDocker(l, append(gc, "--apply")...); !strings.Contains(out, "1 attachment lives") || strings.Contains(out, "removed") {
			l.Errorf("a container runs, and gc shows\n%s", out)
		}
		l.KillDriver()
		l.KillDocker()
		l.Up()
		if driver {
			l.StartDriver()
		} else if out := asDocker(l, gc...); !strings.Contains(out, "docker endpoint") {
			l.Errorf("gc shows\n%s", out)
		}
		asDocker(l, append(gc, "--apply")...)
		l.Gone("gc")
		if !driver {
			l.StartDriver()
		}
		l.Remove("c1")
	}
}

// lost: a network is removed and a container disconnected while the driver is away for
// longer than Docker waits.
func lost(l *lab.Lab) {
	subnet := []string{"--subnet", "10.82.0.0/24"}
	for _, name := range []string{"kept", "gone"} {
		l.Docker(append([]string{"network", "create", "-d", "patchbay", "-o", "cni.network=packednet", "--ipam-driver", "patchbay", "--ipam-opt", "cni.network=packednet", name}, subnet...)...)
	}
	l.Start("c1", "bridge")
	l.Docker("network", "connect", "kept", "c1")
	l.KillDriver()
	_, _ = l.TryDocker("network", "disconnect", "-f", "kept", "c1")
	l.Docker("network", "rm", "gone")
	l.StartDriver()
	gc := []string{l.Patchbayd, "docker", "gc", "--apply", "--docker", dockerHost(l), "--data-root", l.DataRoot(), "--grace", "0s"}
	l.Eventually("the network and the endpoint are collected", func() bool {
		asDocker(l, gc...)
		return l.Sh("cd /var/lib/patchbay/docker; ls networks endpoints | grep -v : | grep -c .") == "1" // kept
	})
	l.Remove("c1")
	l.Gone("disconnected")
	l.Docker("network", "rm", "kept")
	l.Eventually("the pools are collected", func() bool {
		asDocker(l, gc...)
		return l.Sh("ls /var/lib/patchbay/docker/pools /var/lib/patchbay/docker/networks | grep -v :") == ""
	})
}
