// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/netns"
)

// Absent is the exit status of the command for an operation that the runtime does not have.
const Absent = 77

// Options say how Check reaches the runtime.
type Options struct {
	Command []string      `json:"command"`           // of the user; the operation is added
	Without []string      `json:"without,omitempty"` // what the command cannot pass on: "args", "capabilities", "ifname", or "netns" if the runtime makes the namespace
	Version string        `json:"version,omitempty"` // newest of CNI that the runtime supports; the default is 1.1.0, the oldest 1.0.0
	Timeout time.Duration `json:"timeout,omitempty"` // how long the runtime waits for a plugin; 0 means for ever, or not known
	Limit   time.Duration `json:"limit,omitempty"`   // how long an operation may take; 0 is half a minute
	Only    []string      `json:"only,omitempty"`    // names of rules; nil means all

	Node *Node `json:"-"` // nil is this machine
}

func (o *Options) newest() string { return cmp.Or(o.Version, "1.1.0") }

// Node is where scenarios are played.
type Node struct {
	dir            string // working directory
	netns          string // directory of namespaces
	create, remove func(path string) error
	state          string // where runtimes keep what they remember, besides CACHE_DIR
}

// machine is the node of a process in namespaces of its own.
var machine = Node{"/run/patchbay-conformance", "/run/netns", netns.Create, netns.Delete, "/var/lib"}

// Files is a node below a directory, whose namespaces are empty files. It serves a test, without namespaces, of a runtime that
// passes the path of a namespace on and does not enter it: the recorders do not, either.
func Files(dir string) *Node {
	create := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	return &Node{dir: dir, netns: dir, create: create, remove: os.Remove, state: filepath.Join(dir, "state")}
}

// What the runtime is asked to pass to plugins.
const (
	askedArgs         = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1"
	askedCapabilities = `{"ips":["10.7.0.9/24"],"mac":"02:00:00:00:00:01","portMappings":[{"containerPort":80,"hostPort":8080,"protocol":"tcp"}]}`
)

// stage is where one scenario is played.
type stage struct {
	*scenario
	Options
	node   *Node
	dir    string
	offset int      // of what the recorders noted before
	netns  []string // paths of namespaces
	orders string   // in force
	steps  []conformance.Step
}

// container is one of a scenario's two.
type container struct{ id, netns, ifName string }

func (s *stage) container(second bool) container {
	id, ifName := "conformance-"+s.name, "net0"
	if second {
		id, ifName = id+"-2", "net1"
	}
	return container{id, filepath.Join(s.node.netns, id), ifName}
}

// in is a path of the scenario's directory.
func (s *stage) in(name string) string { return filepath.Join(s.dir, name) }

// did notes a command by which a person does the same.
func (s *stage) did(format string, args ...any) {
	s.steps = append(s.steps, conformance.Step{Command: fmt.Sprintf(format, args...)})
}

// play does what a scenario says.
func play(sc *scenario, o Options) (r *recording, steps []conformance.Step, err error) {
	on := cmp.Or(o.Node, &machine)
	s := &stage{scenario: sc, Options: o, node: on, dir: filepath.Join(on.dir, sc.name)}
	defer func() { err = errors.Join(err, s.end()) }()
	r = &recording{scenario: sc, newest: o.newest(), ownNetNS: slices.Contains(o.Without, "netns"), bin: s.in("bin"), netns: map[string]string{}}
	if !slices.Contains(o.Without, "ifname") {
		r.ifName = s.container(false).ifName
	}
	if err := s.prepare(r); err != nil {
		return r, s.steps, fmt.Errorf("prepare the scenario %s: %w", sc.name, err)
	}
	for _, op := range sc.operations {
		d, err := s.operate(op)
		if err != nil {
			return r, s.steps, fmt.Errorf("scenario %s, %s: %w", sc.name, op.do, err)
		}
		r.done = append(r.done, d)
	}
	s.did("cat %s # stdin, descriptors and answers of every call", s.in(callsFile))
	return r, s.steps, nil
}

// prepare makes the directories, the plugins, the network and the namespaces.
func (s *stage) prepare(r *recording) error {
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	for _, dir := range []string{"bin", "net.d", "cache"} {
		if err := os.MkdirAll(s.in(dir), 0o755); err != nil {
			return err
		}
	}
	s.did("mkdir -p %s/bin %[1]s/net.d %[1]s/cache", s.dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range recorders {
		if err := os.Symlink(self, s.in("bin/"+name)); err != nil {
			return err
		}
	}
	s.did("for plugin in %s; do ln -s %s %s/bin/$plugin; done", strings.Join(recorders, " "), self, s.dir)
	for _, second := range []bool{false, true} {
		c := s.container(second)
		if second && !slices.ContainsFunc(s.operations, func(o operation) bool { return o.second }) {
			break
		}
		if err := s.node.create(c.netns); err != nil {
			return err
		}
		s.netns, r.netns[c.netns] = append(s.netns, c.netns), identity(c.netns)
		s.did("ip netns add %s", c.id)
	}
	for _, p := range s.plugins {
		conf := parseObject(p)
		name, _ := conf["type"].(string)
		r.plugins, r.confs = append(r.plugins, name), append(r.confs, conf)
	}
	for _, kv := range s.environ(&operation{}) {
		name, value, _ := strings.Cut(kv, "=")
		s.did("export %s='%s'", name, value)
	}
	return errors.Join(s.writeConf(s.plugins), s.writeDropIn())
}

// writeDropIn writes a plugin's file into the network's directory.
func (s *stage) writeDropIn() error {
	if s.dropIn == "" {
		return nil
	}
	dir := s.in("net.d/" + s.name)
	s.did("mkdir %s; echo '%s' >%[1]s/20-more.conf", dir, s.dropIn)
	return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "20-more.conf"), []byte(s.dropIn), 0o644))
}

// writeConf writes the network's file.
func (s *stage) writeConf(plugins []string) error {
	conf := fmt.Sprintf("{\"cniVersion\": %q, %s\"name\": %q, \"plugins\": [\n  %s\n]}\n",
		cmp.Or(s.version, s.newest()), s.keys, s.name, strings.Join(plugins, ",\n  "))
	file := s.in("net.d/10-" + s.name + ".conflist")
	s.did("cat >%s <<'END'\n%sEND", file, conf)
	return os.WriteFile(file, []byte(conf), 0o644)
}

// changeConf gives the network another configuration, as an administrator does.
func (s *stage) changeConf() error {
	return s.writeConf([]string{strings.Replace(first, `"text": "`, `"text": "`+changedText, 1), third})
}

func (s *stage) deleteNetNS() error {
	c := s.container(false)
	s.did("ip netns delete %s", c.id)
	s.netns = slices.DeleteFunc(s.netns, func(path string) bool { return path == c.netns })
	return s.node.remove(c.netns)
}

// end removes the namespaces.
func (s *stage) end() error {
	var errs []error
	for _, path := range s.netns {
		errs = append(errs, s.node.remove(path))
	}
	return errors.Join(errs...)
}

// operate runs the command for one operation.
func (s *stage) operate(op operation) (*done, error) {
	if op.before != nil {
		if err := op.before(s); err != nil {
			return nil, err
		}
	}
	if err := s.writeOrders(op.orders); err != nil {
		return nil, err
	}
	d := &done{operation: op}
	s.run(d)
	var err error
	var calls []*call
	if calls, s.offset, err = readCalls(s.in(callsFile), s.offset); err != nil {
		return nil, err
	}
	for _, c := range calls {
		if c.Verb != "VERSION" { // which a runtime may call at any time
			d.calls = append(d.calls, c)
		}
	}
	d.files = s.files(s.container(op.second).id)
	s.describe(d)
	return d, nil
}

func (s *stage) writeOrders(orders map[string]string) error {
	if orders == nil {
		orders = map[string]string{}
	}
	data, err := json.Marshal(orders)
	if err != nil {
		return err
	}
	if string(data) == cmp.Or(s.orders, "{}") {
		return nil
	}
	s.orders = string(data)
	s.did("echo '%s' >%s", data, s.in(ordersFile))
	return os.WriteFile(s.in(ordersFile), data, 0o644)
}

// files lists what the runtime keeps of a container, in CACHE_DIR or where runtimes keep it by default.
func (s *stage) files(id string) (list []string) {
	for _, dir := range []string{s.in("cache"), s.node.state} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && names(path, id) {
				list = append(list, path)
			}
			return nil // what cannot be read has no names
		})
	}
	return list
}

// names reports whether a file, or its name, names a container.
func names(path, id string) bool {
	if strings.Contains(filepath.Base(path), id) {
		return true
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Size > 1<<20 {
		return false
	}
	data, err := os.ReadFile(path)
	return err == nil && bytes.Contains(data, []byte(id))
}

// describe notes what the plugins were called for, as a comment.
func (s *stage) describe(d *done) {
	var words []string
	for _, c := range d.calls {
		words = append(words, c.String())
	}
	s.did("# called: %s", cmp.Or(strings.Join(words, ", "), "no plugin"))
}
