// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/cnmtest"
	"github.com/patchbay-net/patchbay/cnm/docker"
	"github.com/patchbay-net/patchbay/internal/endpoint/endpointtest"
	"github.com/patchbay-net/patchbay/internal/nettest/node"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/reftest"
	"github.com/patchbay-net/patchbay/spec"
)

const podnet = `{"cniVersion":"1.1.0","name":"podnet","plugins":[
	{"type":"bridge","bridge":"loop0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.92.0.0/24"}],[{"subnet":"fd92::/64"}]],
	 "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"777"}}]}`

// TestLoop: the plugin drives patchbayd's driver for dockerd, which runs a CNI
// chain. Two containers talk through both, sysctls of the chain arrive, and DEL
// leaves neither side anything.
func TestLoop(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	confDir := t.TempDir()
	endpointtest.Must(t, os.WriteFile(filepath.Join(confDir, "podnet.conflist"), []byte(podnet), 0o600))
	d, err := docker.New(docker.Options{Plugins: []string{reftest.Ours(t)}, ConfDir: confDir, Paths: paths.Default(), Grace: time.Minute, Log: t.Logf})
	endpointtest.Must(t, err)
	listener, err := cnm.ListenUnix(filepath.Join(cnm.SocketDir, "patchbay.sock"), -1)
	endpointtest.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cnm.Serve(ctx, listener, &cnm.Handler{Network: d, IPAM: d, Timeout: time.Minute}) }()
	t.Cleanup(func() { cancel(); endpointtest.Must(t, <-done) })

	for about, conf := range map[string]string{
		"its addresses": `"driver":"patchbay","options":{"cni.network":"podnet"}`,
		"its IPAM's":    `"driver":"patchbay","options":{"cni.network":"podnet"},"ipam":{"type":"cnm-ipam","driver":"patchbay","options":{"cni.network":"podnet"},"pools":[{},{"ipv6":true}]}`,
		"a port":        `"driver":"patchbay","options":{"cni.network":"podnet"},"runtimeConfig":{"portMappings":[{"hostPort":8092,"containerPort":80}]}`,
	} {
		l.Log(about)
		l.loop(strings.Fields(about)[1][:2], conf)
		if left := l.left().Of("link"); len(left) > 0 {
			t.Errorf("%s: left behind:\n%s", about, left)
		}
	}
}

// loop is the life of two containers, whose names end in the suffix.
func (l *lab) loop(suffix, conf string) {
	plain, _, published := strings.Cut(conf, `,"runtimeConfig"`)
	a, b := l.Pod("a"+suffix, conf), l.Pod("b"+suffix, plain)
	endpointtest.Must(l.T, a.Do(spec.Add))
	endpointtest.Must(l.T, b.Do(spec.Add))
	for n := range 2 {
		b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
		l.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), b.Name+" "+a.IP(n))
	}
	if published {
		a.Serve("tcp", endpointtest.Join(a.IP(0), "80"))
		l.Want("client to the port", l.Client.Ask("tcp", endpointtest.Join(node.Uplink4, "8092")), a.Name+" "+node.Client4)
	}
	l.Want("sysctl of the chain", a.ReadSysctl("net/core/somaxconn"), "777")
	endpointtest.Must(l.T, a.Do(spec.Check))
	for _, p := range []*endpointtest.Pod{a, b, b} {
		endpointtest.Must(l.T, p.Do(spec.Del))
	}
	endpointtest.Must(l.T, l.gc(a, `,"keepNetwork":false`))
	if _, err := a.Conn().Link("eth0"); !nl.IsNotFound(err) {
		l.Errorf("the container has its interface: %v", err)
	}
	files, err := filepath.Glob("/var/lib/cni/networks/podnet/*.*.*.*")
	if err != nil || len(files) > 0 {
		l.Errorf("addresses left: %q, %v", files, err)
	}
}
