// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

var (
	pluginsDir  = flag.String("plugins", "", "directory of the plugins to hold to the contract (default: ours, built now)")
	subjectsDir = flag.String("subjects", "", "directory with their descriptions (default: conformance/subjects)")
	update      = flag.Bool("update", false, "write testdata/reference.txt anew")
)

func TestMain(m *testing.M) {
	flag.DurationVar(&settleTime, "settle", settleTime, "how long the kernel may take to finish after a call")
	flag.Parse()
	Main(m)
}

// TestPlugins is the suite for plugins of any project:
//
//	go test ./conformance -run TestPlugins -args -plugins /opt/cni/bin -subjects my/subjects
func TestPlugins(t *testing.T) {
	dir := *pluginsDir
	if dir == "" {
		dir = reftest.Ours(t)
	}
	fsys := Subjects()
	if *subjectsDir != "" {
		fsys = os.DirFS(*subjectsDir)
	}
	list, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, s := range list {
		if _, err := os.Stat(filepath.Join(dir, s.Type)); err == nil {
			held++
			t.Run(s.Name, func(t *testing.T) { suiteOf(t, dir, s).Run(t) })
		}
	}
	if held == 0 {
		t.Fatalf("no plugin of the subjects is in %s", dir)
	}
}

// whole are the subjects whose program keeps the whole contract in `make test`, one of each kind. The
// packages of all plugins run the whole contract in process (plugin/plugintest).
var whole = []string{"bridge", "host-local", "tuning"}

// suiteOf returns the tests for one plugin. Plugins that are given by -plugins keep the whole contract.
func suiteOf(t *testing.T, dir string, subject Subject) Suite {
	t.Helper()
	s := Suite{Subject: subject, Invoker: &invoke.Exec{Stderr: testLog{t}}, Path: []string{dir}}
	if *pluginsDir == "" && !draw.All(t) && !slices.Contains(whole, subject.Name) {
		return s.Brief()
	}
	return s
}

// TestReference runs the same scripts on the reference plugins. testdata/reference.txt lists the
// scripts that fail there. A listed script that passes is an error too. The scripts that pass
// show that we demand no more than the specification.
func TestReference(t *testing.T) {
	dir, file := reftest.Plugins(t), filepath.Join("testdata", "reference.txt")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plugins := judged(t)
	want := slices.DeleteFunc(strings.Fields(string(data)), func(name string) bool {
		plugin, _, _ := strings.Cut(name, "/")
		return !slices.Contains(plugins, plugin)
	})
	got := slices.DeleteFunc(failures(t, dir, plugins), func(name string) bool {
		return !slices.Contains(want, name) && passes(dir, name)
	})
	if *update {
		want = got
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("the reference fails %s, which is not on the list", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("the reference passes %s by now", name)
		}
	}
}

// judged returns the subjects that TestReference runs, in `make test` one of each kind. It leaves out
// ptp, which waits for IPv6 in every ADD.
func judged(t *testing.T) []string {
	t.Helper()
	if draw.All(t) || *update {
		return []string{"bandwidth", "bridge", "firewall", "host-local", "loopback", "portmap", "static", "tuning"}
	}
	return []string{"host-local", "loopback", "tuning"}
}

// passes runs one "subject/script" again. It waits longer for the kernel to finish what a call
// began than failures waits in each script.
func passes(dir, name string) bool {
	only := "^TestPlugins$/^" + strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^") + "$"
	out, _ := exec.Command("/proc/self/exe", "-test.v", "-test.run="+only, "-plugins="+dir).CombinedOutput() // the output has more than the result
	return strings.Contains(string(out), "--- PASS: TestPlugins/"+name+" (")
}

// failures runs TestPlugins for some plugins at the newest version in a separate process. It returns
// what failed, as "subject/script". The pattern leaves out the subtests that are named after a version.
func failures(t *testing.T, dir string, plugins []string) []string {
	t.Helper()
	newest := "-test.run=^TestPlugins$/^(" + strings.Join(plugins, "|") + ")$/^[a-z]"
	const chance = "-test.skip=^TestPlugins$/./^(killed|together)$" // what the reference breaks only sometimes
	cmd := exec.Command("/proc/self/exe", newest, chance, "-plugins="+dir, "-settle=300ms")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^ *--- FAIL: TestPlugins/(\S+)`).FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { // keep only the tests without subtests
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// TestSubjects reads every subject's description and builds every request that the scripts make
// from it.
func TestSubjects(t *testing.T) {
	list, err := Load(Subjects())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		w := &World{t: goTest{t}, suite: &Suite{Subject: s}, version: "1.1.0"}
		for _, second := range []bool{false, true} {
			p := &place{second: second}
			if _, err := w.config(p, &request{verb: "ADD", opts: map[string]string{}}); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if !slices.Contains([]string{"interface", "chained", "ipam"}, s.Kind) {
			t.Errorf("%s: unknown kind %q", s.Name, s.Kind)
		}
	}
}

// A version before 0.3.0 cannot express a result without addresses, and its CHECK and DEL have no prevResult.
func TestNoResultToExpress(t *testing.T) {
	w := &World{t: goTest{t}, suite: &Suite{Subject: Subject{Type: "loopback", Kind: "interface"}}, version: "0.1.0"}
	p := &place{Container: Container{Result: &spec.Result{Interfaces: []spec.Interface{{Name: "lo"}}}}}
	config, err := w.config(p, &request{verb: spec.Check, opts: map[string]string{}})
	if err != nil || strings.Contains(string(config), "prevResult") {
		t.Errorf("CHECK of 0.1.0: %v: %s", err, config)
	}
	w.version = "1.1.0"
	if config, err := w.config(p, &request{verb: spec.Check, opts: map[string]string{}}); err != nil || !strings.Contains(string(config), "prevResult") {
		t.Errorf("CHECK of 1.1.0: %v: %s", err, config)
	}
}

// TestWorldSeesLeaks proves that the command "clean" reports leaks.
func TestWorldSeesLeaks(t *testing.T) {
	list, err := Load(Subjects())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/cni", 0o700); err != nil {
		t.Fatal(err)
	}
	for what, leave := range map[string]func(w *World) error{
		"file of a plugin": func(*World) error { return os.WriteFile("/run/cni/left", nil, 0o600) },
		"link on the host": func(*World) error { return makeVeth("left0") },
		"link in the sandbox": func(w *World) error {
			return inside(w.Attachment().NetNS, func() error { return makeVeth("left1") })
		},
		"MTU in the sandbox": func(w *World) error {
			return inside(w.Attachment().NetNS, func() error {
				return netlink.LinkSetMTU(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}, 1400)
			})
		},
		"address": func(*World) error { return addLoopback("10.200.0.1/32") },
	} {
		w := Suite{Subject: list[0]}.World(t)
		if err := leave(w); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if left, err := w.leftovers(); err != nil || len(left) == 0 {
			t.Errorf("%s: not noticed (%v)", what, err)
		}
		w.Close()
	}
}

// makeVeth makes a veth pair. A bridge would not serve here: a plugin may leave a bridge behind
// by design, so "clean" ignores it.
func makeVeth(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"})
}

func addLoopback(prefix string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, addr)
}
