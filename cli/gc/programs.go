// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// errNoProgram means that a program is not installed.
var errNoProgram = errors.New("not installed")

// listTime limits how long the runtime may take to list its containers.
const listTime = time.Minute

// command returns the command that prints the container ids of a runtime's CNI calls; for
// crictl these are the ids of the pods. The list includes stopped containers, because the
// runtime may start them again under the same id.
func command(runtime string) []string {
	switch runtime {
	case "crictl":
		return []string{"crictl", "pods", "--quiet", "--no-trunc"}
	case "podman":
		return []string{"podman", "ps", "--all", "--quiet", "--no-trunc"}
	case "docker":
		return []string{"docker", "ps", "--all", "--quiet", "--no-trunc"}
	}
	return nil
}

// Containers lists the living containers. If from is crictl, podman or docker, it runs that
// program. Otherwise from is a file with one id per line, or "-" for stdin. It ignores empty
// lines, and comments that begin with '#'.
func Containers(ctx context.Context, from string, stdin io.Reader) (map[string]bool, error) {
	var text []byte
	var err error
	switch argv := command(from); {
	case argv != nil:
		text, err = ask(ctx, argv)
	case from == "-":
		text, err = io.ReadAll(stdin)
	default:
		text, err = os.ReadFile(from)
	}
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	ids, err := parseIDs(string(text))
	if err != nil {
		return nil, fmt.Errorf("list containers from %s: %w", from, err)
	}
	return ids, nil
}

// parseIDs returns an error for text that is not a list of ids, such as a table with a header or
// an error message. By such a list every attachment would look dead.
func parseIDs(text string) (map[string]bool, error) {
	ids := make(map[string]bool)
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if err := spec.ValidateContainerID(line); err != nil {
			return nil, fmt.Errorf("%q is no container id: %w", line, err)
		}
		ids[line] = true
	}
	return ids, nil
}

func ask(ctx context.Context, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	return output(ctx, argv)
}

// output runs a program and returns what it printed, even if it fails.
func output(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the program is one of a fixed list, and the operator asked for it
	invoke.InGroup(cmd)                                   // the program may be a script, whose child holds the pipe
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("run %s: %w", argv[0], errNoProgram)
	}
	if reason := strings.TrimSpace(stderr.String()); err != nil && reason != "" {
		err = errors.Join(err, errors.New(reason))
	}
	if err != nil {
		return out, fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return out, nil
}

// installed is the path where docs/docker.md installs patchbayd. The PATH of a systemd timer
// may lack this directory.
const installed = "/usr/local/bin/patchbayd"

// DriverProgram finds patchbayd: in PATH, in the directory of this program, or where
// docs/docker.md installs it.
func DriverProgram() (string, error) {
	candidates := []string{"patchbayd"}
	if self, err := os.Executable(); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(self), "patchbayd"))
	}
	for _, c := range append(candidates, installed) {
		if path, err := exec.LookPath(c); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("run patchbayd: %w", errNoProgram)
}

// driverTime limits `patchbayd docker gc`, which calls plugins.
const driverTime = 5 * time.Minute

// askDriver runs the gc of the Docker driver, because only the driver's program can remove its
// endpoints, networks and addresses. If Options.Apply is set, that gc removes what is dead. If
// the driver has never run on this node, askDriver does nothing.
func askDriver(ctx context.Context, o *Options) ([]*Candidate, error) {
	if !o.Driver || !used(driverState(o.Paths)) {
		return nil, nil
	}
	program, err := DriverProgram()
	if err != nil {
		return nil, fmt.Errorf("what patchbayd docker holds is not collected: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, driverTime)
	defer cancel()
	argv := []string{"docker", "gc", "--json", "--grace=" + o.Grace.String()}
	if o.Apply {
		argv = append(argv, "--apply")
	}
	out, err := output(ctx, append([]string{program}, argv...))
	var items []struct {
		Kind, Name, Why, Error string
		State                  State
		Removed                bool
	}
	if derr := json.Unmarshal(out, &items); derr != nil {
		err = errors.Join(err, fmt.Errorf("answer of patchbayd docker gc: %w", derr))
	}
	list := make([]*Candidate, len(items))
	for n, i := range items {
		if i.State != Unsure { // drivers of older releases do not send the state
			i.State = Dead
		}
		list[n] = &Candidate{State: i.State, Why: i.Why, Objects: []Object{{"docker " + i.Kind, i.Name}}, Removed: i.Removed, Error: i.Error}
	}
	return list, err
}

// used reports whether the driver's directory contains a file.
func used(dir string) bool {
	for _, kind := range []string{"networks", "endpoints", "pools", "leases"} {
		if entries, err := os.ReadDir(filepath.Join(dir, kind)); err == nil && len(entries) > 0 {
			return true
		}
	}
	return false
}
