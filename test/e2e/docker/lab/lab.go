// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// These are the addresses of a lab: those of the host on its bridge out0, and those of the default
// gateway outside.
const (
	Host4    = "192.0.2.10"
	Host6    = "2001:db8::10"
	Outside4 = "192.0.2.1"
	Outside6 = "2001:db8::1"
)

// outside is the name of the namespace outside.
const outside = "outside"

// Options are the options of a lab.
type Options struct {
	Name string   // unique on this machine
	Kind string   // the lab's: old (20.10), new
	Args []string // of dockerd
	Late bool     // the driver is not started
}

// Lab is one dockerd with our driver, for one test. Each of several tests that run at the same time
// needs its own lab.
type Lab struct {
	testing.TB
	*node
}

// node is the state that all tests of a lab share.
type node struct {
	Kind      string   // old, new, trixie or sid, as test/labs/docker has them
	API       int      // the minor version of the API that dockerd speaks: Docker 20.10 has 41, 26 has 45, 28 has 48 or more
	Args      []string // of dockerd
	name      string
	Plugins   string // our plugin directory
	Patchbayd string
	dir       string // LAB_DIR
	script    string
	env       []string
	driver    *exec.Cmd
	log       *os.File
	before    leak.State // of Mark
}

// New starts a dockerd and the driver beside it; both end with the test.
func New(t testing.TB, o Options) *Lab {
	t.Helper()
	bin, err := programs()
	must(t, err)
	l := &Lab{t, &node{Kind: o.Kind, Args: o.Args, name: o.Name, Plugins: bin.plugins, Patchbayd: bin.patchbayd, script: reftest.Lab(t, "docker/dockerd"), dir: t.TempDir()}}
	l.env = append(os.Environ(), "LAB_DIR="+l.dir)
	if o.Kind == "old" { // a newer client refuses some flags to an old daemon
		l.env = append(l.env, "PATH=/usr/bin:"+os.Getenv("PATH"))
	}
	t.Cleanup(func() { l.lab("down", o.Name) })
	l.Up(o.Args...)
	version := l.Docker("version", "--format", "{{.Server.APIVersion}}")
	if _, err := fmt.Sscanf(version, "1.%d", &l.API); err != nil {
		t.Fatalf("dockerd speaks version %q: %v", version, err)
	}
	l.furnish()
	if !o.Late {
		l.StartDriver()
	}
	t.Cleanup(l.end)
	l.Mark()
	return l
}

// With returns the lab for a subtest.
func (l *Lab) With(t testing.TB) *Lab { return &Lab{t, l.node} }
