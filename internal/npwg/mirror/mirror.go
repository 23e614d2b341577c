// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mirror keeps on the node's disk what an ADD needs to attach a pod to further networks. The agent writes the files
// (Write), and an ADD reads them (Definition, Annotation) without the agent and without the API server. They are in
// /var/lib/patchbay/node/networks:
//
//	definitions/<namespace>/<name>  a NetworkAttachmentDefinition of the cluster
//	pods/<uid>                      the annotation of a pod of this node
//
// The agent writes a pod's file only if the container runtime does not pass annotations to plugins; there an ADD waits for it. Each
// file is complete and replaced by a rename. A file that is damaged or has another schema, and one in a directory that other users
// may change, fails the ADD: a definition is executed as root. A file is used however old it is.
package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

// These are the first words of the files (internal/sealed).
const (
	kind   = "networks"
	schema = 1
)

// maxSize is the size in bytes of the largest file. The API server takes objects of 1.5 MiB.
const maxSize = 2 << 20

// ErrMissing means that the mirror does not have the file. It may come.
var ErrMissing = errors.New("not in the node's mirror")

// These are the directories of the mirror.
const (
	definitionsDir = "definitions"
	podsDir        = "pods"
)

// below is the path of the mirror below the state directory.
func below(more ...string) []string { return append([]string{"node", "networks"}, more...) }

func dir(p paths.Paths) string { return filepath.Join(append([]string{p.State}, below()...)...) }

// pod is the content of a pod's file. The names say whose file it is.
type pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Networks  string `json:"networks"` // the annotation; empty: the pod has none
}

// Definition returns a definition of the cluster. If the mirror does not have it, the error wraps ErrMissing.
func Definition(p paths.Paths, namespace, name string) (d npwg.Definition, err error) {
	if !npwg.IsDefinition(namespace, name) {
		return d, fmt.Errorf("%.100q of namespace %.100q cannot be the name of a definition", name, namespace)
	}
	err = read(p, &d, definitionsDir, namespace, name)
	if err == nil && (d.Namespace != namespace || d.Name != name) {
		err = fmt.Errorf("it is the file of %s: %s", &d, again)
	}
	if err != nil {
		return npwg.Definition{}, fmt.Errorf("definition %s/%s: %w", namespace, name, err)
	}
	return d, nil
}

// Written reports whether the agent has written the mirror since the node was set up. It may have no definition.
func Written(p paths.Paths) bool {
	_, err := os.Lstat(filepath.Join(dir(p), definitionsDir))
	return err == nil
}

// Definitions returns all definitions. errs are about files that cannot be read.
func Definitions(p paths.Paths) (list []npwg.Definition, errs []error) {
	base := filepath.Join(dir(p), definitionsDir)
	err := filepath.WalkDir(base, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || durable.IsTemp(e.Name()) {
			return err
		}
		d, err := Definition(p, filepath.Base(filepath.Dir(path)), e.Name())
		switch {
		case errors.Is(err, ErrMissing): // the agent has removed it
		case err != nil:
			errs = append(errs, err)
		default:
			list = append(list, d)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("list the definitions of networks: %w", err))
	}
	return list, errs
}

// Annotation returns the annotation with the networks of a pod, "" if it has none. If the mirror does not have the pod, the
// error wraps ErrMissing.
func Annotation(p paths.Paths, who npwg.Pod) (string, error) {
	var c pod
	err := ErrMissing
	if isUID(who.UID) {
		err = read(p, &c, podsDir, who.UID)
	}
	if err == nil && (c.Namespace != who.Namespace || c.Name != who.Name) {
		err = fmt.Errorf("%s/%s has the file of pod %s/%s: %s", podsDir, who.UID, c.Namespace, c.Name, again)
	}
	if err != nil {
		return "", fmt.Errorf("annotation of pod %s/%s: %w", who.Namespace, who.Name, err)
	}
	return c.Networks, nil
}

// again is the advice for a file that the agent writes.
const again = "see that `patchbayd node` runs, which writes it again"

// isUID reports whether a UID is safe as the name of a file.
func isUID(uid string) bool { return npwg.IsDefinition(uid, uid) }

// Ready returns an error if no ADD could read the mirror. It accepts that there is none yet.
func Ready(p paths.Paths) error {
	for _, sub := range []string{definitionsDir, podsDir} {
		if err := durable.CheckDir(p.State, below(sub)...); err != nil {
			return fmt.Errorf("definitions of networks: %w: only root may have write access", err)
		}
	}
	return nil
}

// read reads the JSON of a file. The last of names is the file.
func read(p paths.Paths, into any, names ...string) error {
	if err := durable.CheckDir(p.State, below(names[:len(names)-1]...)...); err != nil {
		return fmt.Errorf("%w: only root may have write access", err)
	}
	path := filepath.Join(append([]string{dir(p)}, names...)...)
	data, err := durable.ReadUpTo(path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMissing
	}
	var body []byte
	if err == nil {
		body, err = sealed.Open(kind, schema, data)
	}
	if err == nil {
		err = lightjson.Unmarshal(body, into)
	}
	switch {
	case errors.Is(err, sealed.ErrSchema):
		return fmt.Errorf("read %s: %w: install the plugins and the agent of one release", path, err)
	case err != nil:
		return fmt.Errorf("read %s: %w: %s", path, err, again)
	}
	return nil
}
