// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// These are the sets of plugins. "one" is our program again, with the chain as one plugin (type
// patchbay). "then" and "then-one" are the same two of an earlier commit, so that a noisy machine does
// not look like progress. "resident" and "resident-one" are ours with a process that runs the plugins'
// calls. "floor" has no plugins and makes the bare calls.
const (
	reference = "reference"
	debian    = "debian"
	ours      = "ours"
	oursOne   = "one"
	then      = "then"
	thenOne   = "then-one"
	held      = "resident"
	heldOne   = "resident-one"
	bare      = "floor"
)

// thenCommit is the commit of "then".
const thenCommit = "f0b6e9fe"

// lab is one run of the benchmark.
type lab struct {
	options
	dir     string // temporary directory with our build and the floor's programs
	plugins map[string]string
	nodes   map[string]*client
	served  map[string]string // the server's address, by node of the experiment policies
	results results
	failed  []string
}

func newLab(o options) (*lab, error) {
	dir, err := os.MkdirTemp("", "patchbay-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{options: o, dir: dir, plugins: map[string]string{}, nodes: map[string]*client{}, served: map[string]string{}}
	if err := l.findPlugins(); err != nil {
		l.close()
		return nil, err
	}
	l.results = newResults(o.quick)
	return l, nil
}

func (l *lab) findPlugins() (err error) {
	if err := l.buildFloor(); err != nil {
		return err
	}
	if l.plugins[reference], err = reftest.FindReference(); err != nil {
		return err
	}
	if l.plugins[debian], err = reftest.FindDebian(); err != nil {
		return err
	}
	for _, set := range []string{reference, debian} {
		if l.plugins[set], err = l.inOnePiece(set, l.plugins[set]); err != nil {
			return err
		}
	}
	if err := l.buildThen(); err != nil {
		return err
	}
	if len(l.want(ours, oursOne, held, heldOne)) == 0 {
		return nil
	}
	dir := cmp.Or(os.Getenv(reftest.OursEnv), l.path("ours"))
	for _, set := range []string{ours, oursOne, held, heldOne} {
		l.plugins[set] = dir
	}
	if dir != l.path("ours") {
		return nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return reftest.BuildOurs(dir)
}

// inOnePiece copies programs with one write each, as our install writes its program: the kernel then
// caches them in large pages, which makes an exec up to 0.8 ms faster.
func (l *lab) inOnePiece(set, dir string) (copies string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	copies = l.path(set)
	for _, e := range entries {
		program, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(copies, 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(copies, e.Name()), program, 0o755); err != nil {
			return "", err
		}
	}
	return copies, nil
}

// buildThen builds the earlier commit. The clone's history must have it.
func (l *lab) buildThen() error {
	if len(l.want(then, thenOne)) == 0 {
		return nil
	}
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	l.plugins[then], l.plugins[thenOne] = l.path(then), l.path(then)
	cmd := exec.Command("scripts/earlier", thenCommit, l.path(then))
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build commit %s (`-sets reference,debian,ours,one,floor` does without it): %w: %s", thenCommit, err, out)
	}
	return nil
}

func (l *lab) buildFloor() error {
	if len(l.want(bare)) == 0 {
		return nil
	}
	l.plugins[bare] = l.dir
	for _, name := range []string{"empty", "dellink"} {
		if err := goBuild(l.path(name), "./test/bench/floor/"+name); err != nil {
			return err
		}
	}
	return nil
}

func goBuild(out, pkg string) error {
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) close() {
	l.stopNodes()
	os.RemoveAll(l.dir)
}

func (l *lab) stopNodes() {
	for _, c := range l.nodes {
		c.stop()
	}
	l.nodes = map[string]*client{}
}

// want returns the sets that the command line names.
func (l *lab) want(sets ...string) []string {
	asked := commas(l.sets)
	return slices.DeleteFunc(sets, func(set string) bool { return !slices.Contains(asked, set) })
}

func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// runAll runs the wanted experiments, each on fresh nodes. If one fails, the report says so, and
// the others still run.
func (l *lab) runAll() error {
	only := commas(l.only)
	for _, e := range experiments {
		if len(only) > 0 && !slices.Contains(only, e.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s: %s\n", e.name, e.about)
		if err := e.run(l); err != nil {
			l.failed = append(l.failed, fmt.Sprintf("%s: %v", e.name, err))
			fmt.Fprintln(os.Stderr, "bench: error:", err)
		}
		l.stopNodes()
	}
	return nil
}

// ask sends a request to a set's node. If the node does not run yet, ask starts it.
func (l *lab) ask(set string, req request) (reply, error) {
	c, err := l.client(set)
	if err != nil {
		return reply{}, err
	}
	return c.ask(req)
}

// client returns the client of a set's node. If the node does not run yet, client starts it.
func (l *lab) client(set string) (*client, error) {
	if c := l.nodes[set]; c != nil {
		return c, nil
	}
	n := node{Name: set, Plugins: l.plugins[set], Empty: l.path("empty"), DelLink: l.path("dellink"), Resident: set == held || set == heldOne}
	c, err := start(n)
	if err == nil {
		l.nodes[set] = c
	}
	return c, err
}

// chainOf returns the name under which a set runs a chain.
func chainOf(set, chain string) string {
	if set == oursOne || set == thenOne || set == heldOne {
		return chain + "-one"
	}
	return chain
}

// client talks to a worker.
type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// start starts a worker in namespaces of its own. The worker ends with its standard input. It is
// the first process of its PID namespace, so all processes there end with it.
func start(n node) (*client, error) {
	env, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workerEnv+"="+string(env))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start node %s: %w", n.Name, err)
	}
	return &client{cmd: cmd, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(out)}, nil
}

func (c *client) ask(req request) (rep reply, err error) {
	if err := c.enc.Encode(req); err != nil {
		return rep, fmt.Errorf("send %s: %w", req.Op, err)
	}
	if err := c.dec.Decode(&rep); err != nil {
		return rep, fmt.Errorf("await %s: %w", req.Op, err)
	}
	if rep.Err != "" {
		return rep, errors.New(rep.Err)
	}
	return rep, nil
}

func (c *client) stop() {
	c.in.Close()
	_ = c.cmd.Wait() // a worker that failed has reported it
}
