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
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

// State is what the mirror has.
type State struct {
	Definitions []npwg.Definition

	// Pods are the pods of this node with their annotations. It is empty where the runtime passes annotations to plugins.
	Pods []Pod
}

// Pod is a pod with its annotation. Networks is empty if it has none.
type Pod struct {
	npwg.Pod
	Networks string
}

// Write makes the mirror that of a state, and returns how many files it changed. It writes only files that differ, and removes
// those that the state does not have. Only one process may write. The state must be complete: before the agent has listed
// all objects once, the old mirror is the better one. Write goes on after an error, and returns all errors.
//
// A definition that goes does not harm the pods that use it: their plans have its configuration.
func Write(p paths.Paths, s State) (changed int, err error) {
	w := writer{paths: p, keep: make(map[string]bool)}
	w.fail(durable.MakeDir(p.State, below(definitionsDir)...)) // Written looks for it
	for i := range s.Definitions {
		d := &s.Definitions[i]
		if !npwg.IsDefinition(d.Namespace, d.Name) {
			w.fail(fmt.Errorf("definition %.100q: not a valid name", d.String()))
			continue
		}
		w.put(d, definitionsDir, d.Namespace, d.Name)
	}
	for _, one := range s.Pods {
		if isUID(one.UID) {
			w.put(pod{one.Namespace, one.Name, one.Networks}, podsDir, one.UID)
		}
	}
	w.removeOthers()
	w.sync()
	if err := errors.Join(w.errs...); err != nil {
		return len(w.changed), fmt.Errorf("write definitions of networks to %s: %w", dir(p), err)
	}
	return len(w.changed), nil
}

// Remove removes the mirror, for a node that has no agent any more.
func Remove(p paths.Paths) error { return os.RemoveAll(dir(p)) }

// writer is one Write. Names of files are below the mirror's directory.
type writer struct {
	paths   paths.Paths
	keep    map[string]bool // files that the state has
	changed []string
	errs    []error
}

func (w *writer) fail(err error) {
	if err != nil {
		w.errs = append(w.errs, err)
	}
}

// put writes a file if it differs. If it cannot, it removes the old one: an ADD with old content would attach a pod to what the
// cluster no longer has.
func (w *writer) put(content any, names ...string) {
	name := filepath.Join(names...)
	w.keep[name] = true
	body, err := lightjson.Marshal(content)
	if err != nil {
		w.fail(err)
		return
	}
	data, path := sealed.Seal(kind, schema, body), filepath.Join(dir(w.paths), name)
	if have, err := durable.ReadUpTo(path, maxSize); err == nil && bytes.Equal(have, data) {
		return
	}
	err = durable.MakeDir(w.paths.State, below(names[:len(names)-1]...)...)
	if err == nil {
		err = durable.Write(path, data)
	}
	if w.fail(err); err != nil {
		w.fail(durable.Remove(path))
	}
	w.changed = append(w.changed, name)
}

// removeOthers removes the files that the state does not have, and directories that are empty then.
func (w *writer) removeOthers() {
	for _, sub := range []string{definitionsDir, podsDir} {
		err := filepath.WalkDir(filepath.Join(dir(w.paths), sub), func(path string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil || e.IsDir():
				return err
			}
			name, err := filepath.Rel(dir(w.paths), path)
			if err != nil || w.keep[strings.TrimSuffix(name, "~")] {
				return err
			}
			w.changed = append(w.changed, name)
			err = durable.Remove(path)
			_ = os.Remove(filepath.Dir(path)) // fails while it has other files
			return err
		})
		w.fail(err)
	}
}

// sync makes the changes survive a power loss: pods start after a boot without the API server, too.
func (w *writer) sync() {
	done := make(map[string]bool)
	for _, name := range w.changed {
		path := filepath.Join(dir(w.paths), name)
		for _, path := range []string{path, filepath.Dir(path)} {
			if done[path] {
				continue
			}
			done[path] = true
			if err := durable.Sync(path); !errors.Is(err, fs.ErrNotExist) {
				w.fail(err)
			}
		}
	}
}
