// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance describes as data how every CNI plugin must behave. contract/ has a short
// script for each rule, and subjects/ has a description of each plugin. Run runs these scripts on
// the executables in a directory, which may be written in any language. plugin/plugintest runs
// the same scripts on a plugin.Plugin, in process and as a program.
//
// A script is a txtar file in the language of github.com/rogpeppe/go-internal/testscript. It begins with a comment that
// says the rule, its level and its source (Rule). Its commands are:
//
//	cni VERB [key=value...]   call the plugin; "!" expects an error object.
//	    version=V   cniVersion (default: the version the suite runs at)
//	    at=second   the second attachment: another container, another namespace
//	    conf=KIND   bare (only type, name, ipam.type and Subject.Keep), wrong (every
//	                other key of the wrong JSON type), garbage (no JSON), version
//	                (only cniVersion), second (with Subject.Second, also for the first
//	                attachment), lost (ipam.type is a plugin that does not exist),
//	                escape (ipam.type is a path; after "delegate")
//	    name=N, id=ID, ifname=IF, args=A   override the call's values
//	    netns=none|gone|host   no namespace, a path without one, the plugin's own
//	    prev=none   leave the previous result out
//	    may=fail    an error object is accepted too
//	    valid=LIST  GC: valid attachments ("first,second", "none"); without
//	                it the request has no list
//	error CODE [REGEXP]       the last error object has this code ("any" for any,
//	                          "object" for an error object of the plugin itself)
//	result                    the last ADD's result follows the specification
//	                          and matches the kernel
//	together VERB             call the plugin for both attachments at the same time
//	killed ADD|DEL            kill the plugin at several moments, each followed by a DEL;
//	                          then a GC, if there is GC, after which nothing may be left
//	break                     damage what ADD made, as the subject describes
//	tear                      empty every file that the plugin made
//	occupy                    the container has an interface of the attachment's name
//	netns delete [at]         delete the namespace of an attachment
//	netns recycle             the path of the first leads to the second's namespace
//	delegate [fail VERB]      another IPAM plugin, which notes its calls, or fails
//	called VERB|none          that IPAM plugin got the call as it was, or got none
//	neighbours                a client and a server on networks that the host connects; the
//	                          server has the port of its own address that the plugin publishes
//	reach                     the client reaches the server
//	advertisements            no new link of the host believes router advertisements
//	own                       the host has an interface of the attachment's name, and lo
//	kept                      both are as they were
//	clean                     the node is as it was at the start
//	stands                    the node has more than at the start
//
// A line may begin with a condition. [since:V] means that the suite runs at version V or newer.
// [kind:K], [stateless], [unchecked] and [again] test a field of Subject. [exec] means that the plugin is a
// program, [delegates] that it calls an IPAM plugin, [leaves] that a second ADD in the same namespace may find
// what the first left (Subject.Leaves), [ports] that it publishes a TCP port, and [lo] that the interface is lo.
package conformance

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	t.Helper()
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		t.Run(cmp.Or(s.Name, s.Type), func(t *testing.T) {
			Suite{Subject: s, Invoker: &invoke.Exec{Stderr: testLog{t}}, Path: []string{dir}, dirs: everywhere()}.Run(t)
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

	brief  bool          // see Brief
	dirs   []string      // where files of an attachment may be; nil means where CNI's programs keep them
	only   []string      // the names of the rules to run; nil means all
	settle time.Duration // instead of settleTime
	most   time.Duration // instead of callTime
	hangs  *int          // how many calls did not end
}

// everywhere lists the directories in which a plugin of another project may keep files. Main makes them empty.
func everywhere() []string { return []string{"/run", "/var/lib"} }

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
	s.Scripts, s.brief = subdirectory(few, "contract"), true
	return s
}

// Run runs every script at the newest version. For every other version that the subject
// supports, it also runs the script about the life of an attachment.
func (s Suite) Run(t *testing.T) { s.run(goTest{t}) }

func (s Suite) run(t tester) {
	s.Subject.need(t)
	s.hangs = new(int)
	files, err := s.unpack(t.TempDir())
	if err != nil {
		t.Fatalf("unpack scripts: %v", err) // testscript reads files
	}
	s.at(t, s.Subject.newest(), files)
	if s.brief {
		return
	}
	life := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return filepath.Base(file) != "life.txtar" })
	for _, v := range s.Subject.older() {
		if len(life) > 0 {
			t.sub(v, func(t tester) { s.at(t, v, life) })
		}
	}
	for _, r := range s.Subject.Refused {
		if name := "refused " + r.About; s.only == nil || slices.Contains(s.only, name) {
			t.sub(name, func(t tester) { s.refused(t, r) })
		}
	}
}

// unpack writes the scripts into a directory and returns the files of those that are wanted.
func (s *Suite) unpack(dir string) ([]string, error) {
	scripts := s.Scripts
	if scripts == nil {
		scripts = Contract()
	}
	if err := os.CopyFS(dir, scripts); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if s.only != nil {
		files = slices.DeleteFunc(files, func(file string) bool {
			return !slices.Contains(s.only, strings.TrimSuffix(filepath.Base(file), ".txtar"))
		})
	}
	return files, err
}

// at runs the scripts at one version of the specification.
func (s Suite) at(t tester, version string, files []string) {
	if len(files) == 0 {
		return
	}
	testscript.RunT(shim{t}, testscript.Params{
		Files:       files,
		WorkdirRoot: t.TempDir(), // testscript would leave its own default directory behind when -run skips a script
		Setup:       func(env *testscript.Env) error { return s.setup(env, version) },
		Condition:   func(cond string) (bool, error) { return s.condition(cond, version) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"cni": cmdCNI, "error": cmdError, "result": cmdResult, "break": cmdBreak,
			"netns": cmdNetNS, "clean": cmdClean, "stands": cmdStands,
			"together": cmdTogether, "killed": cmdKilled, "tear": cmdTear, "occupy": cmdOccupy,
			"neighbours": cmdNeighbours, "reach": cmdReach,
			"delegate": cmdDelegate, "called": cmdCalled, "advertisements": cmdAdvertisements,
			"own": cmdOwn, "kept": cmdKept,
		},
	})
}

// setup gives a script two new attachments.
func (s Suite) setup(env *testscript.Env, version string) error {
	t, ok := env.T().(shim)
	if !ok {
		return fmt.Errorf("conformance: unknown T %T", env.T())
	}
	if s.hangs != nil && *s.hangs >= mostHangs {
		return fmt.Errorf("%d calls did not end within %v, so the suite stops", *s.hangs, s.limit())
	}
	env.Values[worldKey{}] = newWorld(t.tester, &s, version)
	return nil
}

// mostHangs is how many calls may not end before the suite stops calling the plugin.
const mostHangs = 3

func (s *Suite) hung() {
	if s.hangs != nil {
		*s.hangs++
	}
}

// limit is how long a call may take.
func (s *Suite) limit() time.Duration { return cmp.Or(s.most, callTime) }

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
