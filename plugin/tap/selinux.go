// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// labelled makes taps in a process with an SELinux label, because the kernel gives a tap the
// label of the process that makes it. A process with threads can change its label only by
// executing a program. So labelled needs a separate process.
type labelled struct {
	label   string
	program string // plugin.Session.Self
	proc    string // path of procfs
}

// newLabelled prepares a label. On a node without SELinux it returns an error before any work.
func newLabelled(r *plugin.Request, label string) (*labelled, error) {
	if _, err := os.Stat(filepath.Join(r.Session.Paths.Sys, "fs/selinux/enforce")); err != nil {
		return nil, spec.Invalid("failed set socket label: SELinux is not enabled on this node: %w", err)
	}
	if r.Session.Self == "" {
		return nil, spec.Invalid("failed set socket label: the program that holds the plugin tap is not a plugin; install it as one")
	}
	return &labelled{label: label, program: r.Session.Self, proc: r.Session.Paths.Proc}, nil
}

// add makes the tap in a new process. The process inherits namespace and label from the
// current thread.
func (l *labelled) add(c *nl.Conn, t nl.Tap) error {
	return c.Do(func() error {
		if err := l.write(l.label); err != nil {
			return fmt.Errorf("failed set socket label: %w", err)
		}
		return errors.Join(l.run(t), l.write("\n")) // an empty label restores the default
	})
}

func (l *labelled) write(label string) error {
	f, err := os.OpenFile(filepath.Join(l.proc, "thread-self/attr/exec"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(label)
	return errors.Join(err, f.Close())
}

func (l *labelled) run(t nl.Tap) error {
	what, err := json.Marshal(t)
	if err != nil {
		return err
	}
	cmd := exec.Command(l.program)
	cmd.Args, cmd.Env = plugin.HelperArgs(name, string(what)), []string{}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make tap under the label %s: %w: %s", l.label, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// helper is the main function of the new process.
func helper(args []string) error {
	var t nl.Tap
	if len(args) != 1 {
		return errors.New("one tap is to be made")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("decode what to make: %w", err)
	}
	return t.Add()
}
