// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jessevdk/go-flags"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/patchbay-net/patchbay/daemons/test/chart"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// The network's file stays until the last pod of the network that ours took over is gone.
func TestRemoveNetwork(t *testing.T) {
	d := t.TempDir()
	where := paths.Paths{Run: d + "/run", State: d + "/state", CNI: d + "/cni"}
	n := podnet.Network{Node: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Pool: podnet.Pool{Name: "cbr0"}}
	file, reservation := filepath.Join(d, "net.d", podnet.File), filepath.Join(where.CNI, "networks/cbr0/10.244.1.5")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{file: string(n.Text()), reservation: "old\r\neth0", filepath.Dir(reservation) + "/lock": ""} {
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(text), 0o600))
	}
	ctx, cancel := context.WithCancel(t.Context())
	clean := &nodeCleanCommand{node: &nodeCommand{ConfDir: filepath.Dir(file), app: &app{ctx: ctx}}}
	must(clean.removeNetwork(where))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a pod needs the file: %v", err)
	}
	waiting := &nodeCleanCommand{Wait: true, node: clean.node}
	done := make(chan error, 1)
	go func() { done <- waiting.removeNetwork(where) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("it does not wait for the pod")
	}
	clean.node.app.ctx = t.Context()
	must(os.Remove(reservation))
	must(waiting.removeNetwork(where))
	if _, err := os.Stat(file); err == nil {
		t.Error("no pod needs the file, and it stays")
	}
}

// TestUninstallManifest: patchbayd takes the arguments of the containers that uninstall the agent, and
// the container that stays ends with a signal.
func TestUninstallManifest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := &app{ctx: ctx}
	for _, doc := range strings.Split(chart.Render(t, func(v map[string]any) { v["uninstall"] = true }), "\n---\n") {
		var ds appsv1.DaemonSet
		if yaml.UnmarshalStrict([]byte(doc), &ds) != nil {
			continue
		}
		for _, c := range slices.Concat(ds.Spec.Template.Spec.InitContainers, ds.Spec.Template.Spec.Containers) {
			command := newNodeCommand(a)
			p := flags.NewNamedParser("patchbayd", flags.None)
			added, err := p.AddCommand("node", "", "", command)
			if err != nil {
				t.Fatal(err)
			}
			added.SubcommandsOptional = true
			p.CommandHandler = func(flags.Commander, []string) error { return nil }
			if rest, err := p.ParseArgs(c.Args); err != nil || len(rest) > 0 || added.Active == nil || added.Active.Name != "clean" {
				t.Errorf("%q: %v %q", c.Args, err, rest)
			}
			if command.ConfDir != "/host/etc/cni/net.d" || command.Clean.Wait == command.Clean.Stay {
				t.Errorf("%q: %s, wait %v, stay %v", c.Args, command.ConfDir, command.Clean.Wait, command.Clean.Stay)
			}
		}
	}
}
