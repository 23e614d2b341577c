// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestMain registers this program under its own name and under its plugins' names, and
// runs the tests in a separate network.
func TestMain(m *testing.M) {
	programs := map[string]func(){"patchbay": func() { os.Exit(program(nil)) }, "netns": netnsProgram, "fwlist": fwlistProgram, "holdrecord": holdRecordProgram, "tear": tearProgram, "sysctl": sysctlProgram, "mesh": meshProgram, "policies": policiesProgram, "services": servicesProgram}
	for _, p := range testPlugins() {
		if p.Name != "patchbay" {
			programs[p.Name] = func() { os.Exit(program(p)) }
		}
	}
	maps.Copy(programs, toolPrograms())
	if programs[filepath.Base(os.Args[0])] != nil {
		testscript.Main(m, programs)
	}
	nettest.Main(scripts{m, programs})
}

// program is the main function of cmd/patchbay.
func program(p *plugin.Plugin) int {
	if p == nil && len(os.Args) == 1 && os.Getenv("CNI_COMMAND") != "" {
		p = all.Find("patchbay")
	}
	if p != nil {
		return plugin.MainOf(p, testPlugins())
	}
	a := newApp(testPlugins())
	a.settle, _ = time.ParseDuration(os.Getenv("SETTLE")) // set by a script whose living containers have lost their files
	return a.main()
}

type scripts struct {
	m        *testing.M
	programs map[string]func()
}

// Run does not return: testscript.Main exits.
func (s scripts) Run() int {
	testscript.Main(s.m, s.programs)
	return 0
}

// testPlugins returns the real plugins, and one that misbehaves on request.
func testPlugins() []*plugin.Plugin {
	return append([]*plugin.Plugin{{
		Name: "fake", About: "does what its configuration says, for tests",
		Capabilities: []string{"portMappings"},
		Conf:         func() any { return new(fakeConf) },
		Add:          fakeAdd, Del: fakeDo, Check: fakeDo, Status: fakeDo, GC: fakeDo,
	}}, all.Plugins()...)
}

// fakeConf is the configuration of the plugin fake.
type fakeConf struct {
	Fail  string `json:"fail"`  // verb that fails
	Sleep int    `json:"sleep"` // milliseconds that ADD takes
	Begun string `json:"begun"` // file that ADD makes first
	Until string `json:"until"` // file that ADD waits for
}

func fakeAdd(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	var conf fakeConf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(conf.Sleep) * time.Millisecond)
	if err := conf.hold(); err != nil {
		return nil, err
	}
	if dry := r.Session.Dry; dry != nil {
		dry("host: fake " + r.IfName)
	}
	if prev := r.Prev(); prev != nil {
		return prev, fakeDo(ctx, r)
	}
	return &spec.Result{Interfaces: []spec.Interface{{Name: r.IfName, Sandbox: r.NetNS}}}, fakeDo(ctx, r)
}

// hold signals that ADD has begun and waits until it may go on.
func (c *fakeConf) hold() error {
	if c.Begun == "" {
		return nil
	}
	err := os.WriteFile(c.Begun, []byte("begun\n"), 0o600)
	for range 3000 {
		if _, serr := os.Stat(c.Until); err != nil || serr == nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%s did not come", c.Until)
}

func fakeDo(_ context.Context, r *plugin.Request) error {
	var conf fakeConf
	if err := r.Decode(&conf); err != nil {
		return err
	}
	if conf.Fail == string(r.Verb) {
		return spec.Errorf(spec.CodeTryAgain, "fake fails %s as it was told", r.Verb)
	}
	if r.Verb == spec.GC && r.Session.Stderr != nil {
		valid, _ := r.Head.Valid()
		fmt.Fprintf(r.Session.Stderr, "fake keeps %d\n", len(valid)) //nolint:errcheck // a test
	}
	return nil
}

func TestScripts(t *testing.T) { runScripts(t, "testdata") }

// runScripts runs the scripts and leaves no directory behind. testscript would leave one when
// -run leaves out a script.
func runScripts(t *testing.T, dir string) {
	t.Setenv("GOTMPDIR", t.TempDir())
	testscript.RunT(node{t}, params(t, dir))
}

func params(t *testing.T, dir string) testscript.Params {
	return testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Setenv("NETCONFPATH", filepath.Join(env.WorkDir, "net.d"))
			env.Setenv("CNI_PATH", filepath.Join(env.WorkDir, "bin"))
			if n := env.T().(node); strings.HasSuffix(n.Name(), "/install") { // only this script needs a drawn number
				env.Setenv("UPGRADES", strconv.Itoa(draw.Number(n, "PATCHBAY_CLI_UPGRADES", 4, 20))) // each upgrade writes and hashes this program twice
			}
			return nil
		},
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":   cmdStatus,
			"until":    cmdUntil,
			"elements": cmdElements,
			"sigkill":  signalFile(syscall.SIGKILL),
			"sigterm":  signalFile(syscall.SIGTERM),
			"gone":     cmdGone,
			"killrun":  cmdKillRun,
		},
	}
}

// node gives every script a separate machine: its own network, /run, /var/lib and
// /etc/cni.
type node struct{ *testing.T }

func (n node) Run(name string, f func(testscript.T)) {
	n.T.Run(name, func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: the thread ends with the script
		if err := newNode(); err != nil {
			t.Fatal(err)
		}
		f(node{t})
	})
}

func (n node) Verbose() bool { return testing.Verbose() }

// Parallel does nothing, because the thread must run only its own script.
func (node) Parallel() {}

func newNode() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	errs := []error{unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, "")}
	for _, dir := range []string{"/run", "/var/lib"} {
		errs = append(errs, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(append(errs, netlink.LinkSetUp(lo))...)
}

func condition(name string) (bool, error) {
	switch name {
	case "ipv6":
		return hasIPv6("/proc"), nil
	case "seesall": // as if this were not a container's PID namespace
		return life.SeesProcesses(), nil
	}
	return false, fmt.Errorf("unknown condition %s", name)
}

// netnsProgram is `netns add|del NAME`. To create a namespace needs another thread than the
// script's, so netnsProgram is a program.
func netnsProgram() {
	path := filepath.Join(paths.Default().NetNS, os.Args[2])
	do := netns.Create
	if os.Args[1] == "del" {
		do = netns.Delete
	}
	if err := do(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fwlistProgram is `fwlist [flush | del TEXT | foreign TIMEOUT]`. Without arguments it lists the
// elements of published ports and networks. flush does what `nft flush ruleset` does. del removes
// the elements that contain a text. foreign does what an operator's `nft add element inet
// patchbay ports4 { tcp . 8080 timeout TIMEOUT : 10.77.0.99 . 99 }` does.
func fwlistProgram() {
	if len(os.Args) == 3 && os.Args[1] == "foreign" {
		addForeign(os.Args[2])
		return
	}
	if len(os.Args) == 2 {
		c := &nftables.Conn{}
		c.FlushRuleset()
		if err := c.Flush(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fw := nft.Open("")
	for _, set := range []string{nft.SetPorts4, nft.SetHostPorts4, nft.SetMasqueraded4,
		nft.SetSameNet4 + "_24", nft.SetNeighbours4 + "_24", nft.SetExempt4, nft.SetOwners, nft.SetInternal} {
		list, err := fw.List(set)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		slices.SortFunc(list, func(x, y nft.Element) int { return strings.Compare(x.String(), y.String()) })
		for _, e := range list {
			switch {
			case len(os.Args) < 3:
				fmt.Println(e)
			case strings.Contains(e.String(), os.Args[2]):
				fw.Remove(e)
			}
		}
	}
	if err := fw.Commit(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func addForeign(timeout string) {
	long, err := time.ParseDuration(timeout)
	e := nft.Port(nft.Published{Protocol: 6, Port: 8080, To: netip.MustParseAddrPort("10.77.0.99:99")}, nil, "")
	c := &nftables.Conn{}
	t := &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyINet}
	set, serr := c.GetSetByName(t, nft.SetPorts4)
	if err = errors.Join(err, serr); err == nil {
		set.Table = t
		err = c.SetAddElements(set, []nftables.SetElement{{Key: e.Key, Val: e.Data, Timeout: long}})
	}
	if err = errors.Join(err, c.Flush()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// cmdElements is `elements TEXT`. It waits until the firewall has an element with this text.
func cmdElements(ts *testscript.TestScript, _ bool, args []string) {
	waitFor(ts, "an element", func() bool {
		out, err := exec.Command("fwlist").Output()
		return err == nil && strings.Contains(string(out), args[0])
	})
}

// cmdStatus is `status N COMMAND...`. The command must end with exit status N.
func cmdStatus(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, not %d", got, want)
	}
}

// cmdUntil is `until PATTERN`. It waits for a file that is not empty.
func cmdUntil(ts *testscript.TestScript, _ bool, args []string) {
	waitFor(ts, args[0]+" to appear", func() bool {
		files, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		for _, f := range files {
			if fi, err := os.Stat(f); err == nil && fi.Size() > 0 {
				return true
			}
		}
		return false
	})
}

func waitFor(ts *testscript.TestScript, what string, done func() bool) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if done() {
			return
		}
	}
	ts.Fatalf("waited in vain for %s", what)
}

func pidIn(ts *testscript.TestScript, file string) int {
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(file)))
	ts.Check(err)
	return pid
}

// signalFile makes the command `sigkill FILE`. It signals the process whose id is in the file.
func signalFile(sig syscall.Signal) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		ts.Check(syscall.Kill(pidIn(ts, args[0]), sig))
	}
}

// cmdGone is `gone FILE`. It waits until the process whose id is in the file has ended.
func cmdGone(ts *testscript.TestScript, _ bool, args []string) {
	pid := pidIn(ts, args[0])
	waitFor(ts, "the end of a process", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

// cmdKillRun kills the script's background `patchbay run`. It knows that process by the
// namespaces of the script.
func cmdKillRun(ts *testscript.TestScript, _ bool, _ []string) {
	mine, err := os.Readlink("/proc/thread-self/ns/mnt")
	ts.Check(err)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	ts.Check(err)
	for _, dir := range dirs {
		ns, _ := os.Readlink(filepath.Join(dir, "ns/mnt"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && ns == mine && strings.Contains(string(line), "patchbay\x00run\x00") {
			ts.Check(syscall.Kill(pid, syscall.SIGKILL))
			return
		}
	}
	ts.Fatalf("no patchbay run")
}
