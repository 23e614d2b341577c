// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance describes as data how every CNI plugin must behave. contract/ has a short
// script for each rule, and subjects/ has a description of each plugin. Run runs these scripts on
// the executables in a directory, which may be written in any language. plugin/plugintest runs
// the same scripts on a plugin.Plugin, in process and as a program.
//
// A script is a txtar file in the language of github.com/rogpeppe/go-internal/testscript, with
// these commands:
//
//	cni VERB [key=value...]   call the plugin; "!" expects an error object.
//	    version=V   cniVersion (default: the version the suite runs at)
//	    at=second   the second attachment: another container, another namespace
//	    conf=KIND   bare (only type, name, ipam.type and Subject.Keep), wrong (every
//	                other key of the wrong JSON type), garbage (no JSON)
//	    name=N, id=ID, ifname=IF, args=A   override the call's values
//	    netns=none|gone|host   no namespace, a path without one, the plugin's own
//	    prev=none   leave the previous result out
//	    may=fail    an error object is accepted too
//	    valid=LIST  GC: valid attachments ("first,second", "none"); without
//	                it the request has no list
//	error CODE [REGEXP]       the last error object has this code ("any" for any)
//	result                    the last ADD's result follows the specification
//	                          and matches the kernel
//	break                     damage what ADD made, as the subject describes
//	netns delete [at]         delete the namespace of an attachment
//	clean                     the node is as it was at the start
//	stands                    the node has more than at the start
//
// A line may begin with a condition. [since:V] means that the suite runs at version V or newer.
// [kind:K], [stateless], [unchecked] and [again] test a field of Subject.
package conformance

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Main is the TestMain of a package that calls Run. Main gives the tests their own network,
// /run and /var/lib.
func Main(m *testing.M) { nettest.Main(m) }

// Run tests the plugins in dir against the contract. The plugins get dir as CNI_PATH.
func Run(t *testing.T, dir string, list ...Subject) {
	for _, s := range list {
		t.Run(cmp.Or(s.Name, s.Type), func(t *testing.T) {
			Suite{Subject: s, Invoker: &invoke.Exec{Stderr: testLog{t}}, Path: []string{dir}}.Run(t)
		})
	}
}

// Suite tests one plugin over one transport.
type Suite struct {
	Subject Subject
	Invoker invoke.Invoker
	Path    []string // CNI_PATH

	// Prepare, if set, replaces Subject.Prev. The suite calls Prepare once for each attachment.
	// Prepare makes what the plugin needs in the attachment's namespace and on the host. It returns
	// the result of the plugin before, or nil.
	Prepare func(t *testing.T, a *Container) *spec.Result
	// Break, if set, replaces Subject.Break.
	Break func(t *testing.T, a *Container)
	// BreakError is a text that the error of CHECK must contain after the damage.
	BreakError string

	// Scripts holds the scripts to run; nil means Contract().
	Scripts fs.FS

	brief bool // see Brief
}

// Container is one of the two containers of a script.
type Container struct {
	ContainerID string
	NetNS       string // path of the namespace
	IfName      string
	Result      *spec.Result // result of the last ADD; nil before it
}

// Brief returns the suite with a few scripts, at the newest version only and without Subject.Refused:
// one life, what a plugin reads from its environment and from standard input, and what it needs to
// remember between two calls. Use it for a plugin that keeps the whole contract over another transport.
func (s Suite) Brief() Suite {
	s.Scripts, s.brief = sub(few, "contract"), true
	return s
}

// Run runs every script at the newest version. For every other version that the subject
// supports, it also runs the scripts about versions.
func (s Suite) Run(t *testing.T) {
	s.Subject.need(t)
	dir := t.TempDir()
	scripts := s.Scripts
	if scripts == nil {
		scripts = Contract()
	}
	if err := os.CopyFS(dir, scripts); err != nil { // testscript reads files
		t.Fatalf("unpack scripts: %v", err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	s.at(t, spec.Current, all)
	if s.brief {
		return
	}
	for _, v := range spec.VersionsFrom(s.Subject.minVersion()) {
		t.Run(v, func(t *testing.T) { s.at(t, v, []string{filepath.Join(dir, "life.txtar")}) })
	}
	for _, r := range s.Subject.Refused {
		t.Run("refused "+r.About, func(t *testing.T) { s.refused(t, r) })
	}
}

// at runs the scripts at one version of the specification.
func (s Suite) at(t *testing.T, version string, files []string) {
	testscript.RunT(shim{t}, testscript.Params{
		Files:       files,
		WorkdirRoot: t.TempDir(), // testscript would leave its own default directory behind when -run skips a script
		Setup:       func(env *testscript.Env) error { return s.setup(env, version) },
		Condition:   func(cond string) (bool, error) { return s.condition(cond, version) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"cni": cmdCNI, "error": cmdError, "result": cmdResult, "break": cmdBreak,
			"netns": cmdNetNS, "clean": cmdClean, "stands": cmdStands,
		},
	})
}

// setup gives a script two new attachments.
func (s Suite) setup(env *testscript.Env, version string) error {
	t, ok := env.T().(shim)
	if !ok {
		return fmt.Errorf("conformance: unknown T %T", env.T())
	}
	env.Values[worldKey{}] = newWorld(t.T, &s, version)
	return nil
}

// shim makes a *testing.T usable as a testscript.T. shim runs the scripts one after another: they
// share the host's namespace, in which the suite looks for leaks.
type shim struct{ *testing.T }

func (t shim) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { f(shim{t}) })
}
func (t shim) Parallel()     {}
func (t shim) Verbose() bool { return testing.Verbose() }

// testLog writes a plugin's standard error to the test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("stderr: %s", p)
	return len(p), nil
}

//go:embed contract/*.txtar
var contract embed.FS

//go:embed contract/add-again.txtar contract/check-broken.txtar contract/del-netns-gone.txtar contract/gc.txtar
//go:embed contract/life.txtar contract/refuse-config.txtar contract/refuse-environment.txtar
var few embed.FS

//go:embed subjects/*.json
var subjects embed.FS
