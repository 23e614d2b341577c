// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Write makes the mirror that of a state, and returns the number of files that it changed. It writes
// only files that differ, and removes those of namespaces and pods that are gone. Only one process
// may write. A pod of the state without a UID has no file.
//
// The state must be complete: before the agent has listed all objects once, the old mirror is the
// better one. Write the mirror before the kernel gets the program, so that no ADD uses an old
// decision after that.
//
// Write goes on after an error, and returns all errors. If it cannot write a file, it removes the
// old one, so that an ADD isolates the pod. A full disk does not prevent that.
func Write(p paths.Paths, d *policy.Decider) (changed int, err error) {
	return write(p, d, func() {})
}

// Put is Write without Sync. ADDs see the files, but a power loss may undo them. After a power loss the kernel has
// no program either, so the load of a program need not wait for Sync, in which a disk may hang for seconds.
func Put(p paths.Paths, d *policy.Decider) (changed []string, err error) {
	return putAll(p, d, func() {})
}

// Sync makes what Put has changed survive a power loss.
func Sync(p paths.Paths, changed []string) error {
	w := writer{paths: p, changed: changed}
	if len(changed) > 0 {
		w.sync()
	}
	return w.result()
}

// write calls step before each change. Tests end there.
func write(p paths.Paths, d *policy.Decider, step func()) (changed int, err error) {
	files, err := putAll(p, d, step)
	return len(files), errors.Join(err, Sync(p, files))
}

func putAll(p paths.Paths, d *policy.Decider, step func()) (changed []string, err error) {
	w := writer{paths: p, step: step, keep: make(map[string]bool)}
	w.writeAll(d)
	return w.changed, w.result()
}

// result joins the errors of all files, and names the directory of the mirror.
func (w *writer) result() error {
	if err := w.failed(); err != nil {
		return fmt.Errorf("write network policies to %s: %w", dir(w.paths), err)
	}
	return nil
}

// Remove removes the mirror, so that no ADD isolates a pod. It is for a node that enforces policies
// no more. If Remove is killed, there is either the whole mirror or none.
func Remove(p paths.Paths) error {
	gone := dir(p) + "~"
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(dir(p), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// headOf returns the decision for namespaces that the state does not have. The agent may not have
// seen their policies yet. But if the cluster has no policy at all, pods of such a namespace should have their
// network even while the agent does not run.
func headOf(s *policy.State) policy.Decision {
	if len(s.Policies)+len(s.ClusterPolicies) == 0 {
		return policy.Decision{}
	}
	return closed()
}

// writer is one Write. Names of files are below the mirror's directory.
type writer struct {
	paths   paths.Paths
	step    func()
	keep    map[string]bool // files that the state has
	changed []string        // files that were written or removed
	errs    []error
}

func (w *writer) path(name string) string { return filepath.Join(dir(w.paths), name) }

func (w *writer) fail(err error) {
	if err != nil {
		w.errs = append(w.errs, err)
	}
}

// failed joins the first errors. If the disk is full, every file has one.
func (w *writer) failed() error {
	const most = 10
	if more := len(w.errs) - most; more > 0 {
		return errors.Join(append(w.errs[:most:most], fmt.Errorf("%d more errors", more))...)
	}
	return errors.Join(w.errs...)
}

// mkdir makes a directory, or reports that it is not safe to write there.
func (w *writer) mkdir(sub ...string) bool {
	w.step()
	err := durable.MakeDir(w.paths.State, below(sub...)...)
	w.fail(err)
	return err == nil
}

// writeAll makes all changes. The head comes first: when the first policy of a cluster comes with a
// new namespace, this isolates the namespace before it has a file. Also, a new mirror has its head
// before its other directories, so a mirror without a head is damaged.
func (w *writer) writeAll(d *policy.Decider) {
	if !w.mkdir() {
		return
	}
	w.put(headFile, content{Decision: headOf(d.State)})
	if !w.mkdir(namespacesDir) || !w.mkdir(podsDir) {
		return
	}
	w.putFiles(d)
	w.removeOthers(namespacesDir)
	w.removeOthers(podsDir)
}

// putFiles writes the files of all namespaces, and of the pods of this node. A pod whose namespace is
// not known has no file, because the policies of that namespace may not be known either.
func (w *writer) putFiles(d *policy.Decider) {
	for _, n := range d.State.Namespaces {
		if !plain(n.Name) {
			w.fail(fmt.Errorf("namespace %.100q is not a valid name", n.Name))
			continue
		}
		unknown := policy.Pod{Namespace: n.Name, Unknown: true}
		w.put(filepath.Join(namespacesDir, n.Name), content{n.Name, "", d.Decide(&unknown)})
	}
	for i := range d.State.Pods {
		p := &d.State.Pods[i]
		if p.Node == d.State.Node && p.Enforced() && !p.Unknown && plain(p.UID) && w.keep[filepath.Join(namespacesDir, p.Namespace)] {
			w.put(filepath.Join(podsDir, p.UID), content{p.Namespace, p.Name, d.Decide(p)})
		}
	}
}

// put writes a file if it differs.
func (w *writer) put(name string, c content) {
	w.keep[name] = true
	data := c.encode()
	if len(data) > maxSize {
		w.fail(fmt.Errorf("%s would have %d bytes: an ADD isolates its pods", name, len(data)))
		data = content{c.namespace, c.pod, closed()}.encode()
	}
	path := w.path(name)
	if have, err := durable.ReadUpTo(path, maxSize); err == nil && bytes.Equal(have, data) {
		return
	}
	w.step()
	w.changed = append(w.changed, name)
	err := durable.Write(path, data)
	if w.fail(err); err != nil && !Unknown(w.paths) { // the head of Isolate isolates as long as it exists
		w.fail(durable.Remove(path))
	}
}

// removeOthers removes the files of a directory that the state does not have.
func (w *writer) removeOthers(sub string) {
	entries, err := os.ReadDir(w.path(sub))
	w.fail(err)
	for _, e := range entries {
		name := filepath.Join(sub, strings.TrimSuffix(e.Name(), "~"))
		if !w.keep[name] {
			w.step()
			w.fail(durable.Remove(w.path(name)))
			w.changed = append(w.changed, name)
		}
	}
}

// sync makes the changes survive a power loss.
func (w *writer) sync() {
	for _, name := range append(w.changed, ".", namespacesDir, podsDir) {
		if err := durable.Sync(w.path(name)); !errors.Is(err, fs.ErrNotExist) {
			w.fail(err)
		}
	}
}
