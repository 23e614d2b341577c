// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

// Pod names a pod as a runtime does in an ADD. Without a UID, the labels of the pod count as not
// known.
type Pod struct{ Namespace, Name, UID string }

// Read returns what an ADD must enforce for a pod. The decision counts even if err is not nil: then
// it isolates the pod, and err says why and what to do.
//
// An ADD closes each direction that is isolated or has chains (enforce.Closes), because a chain may deny.
func Read(p paths.Paths, pod Pod) (policy.Decision, error) {
	d, err := read(p, pod)
	if err != nil {
		return closed(), fmt.Errorf("network policies for pod %s/%s: %w; the pod is isolated", pod.Namespace, pod.Name, err)
	}
	return d, nil
}

func read(p paths.Paths, pod Pod) (policy.Decision, error) {
	if !plain(pod.Namespace) {
		return policy.Decision{}, fmt.Errorf("namespace %.100q is not a valid name: correct K8S_POD_NAMESPACE of the call", pod.Namespace)
	}
	for _, sub := range []string{podsDir, namespacesDir} {
		if err := durable.CheckDir(p.State, below(sub)...); err != nil {
			return policy.Decision{}, fmt.Errorf("%w: only root may have write access", err)
		}
	}
	if plain(pod.UID) {
		d, err := readFile(filepath.Join(dir(p), podsDir, pod.UID), pod.Namespace, pod.Name)
		if !errors.Is(err, fs.ErrNotExist) {
			return d, err
		}
	}
	d, err := readFile(filepath.Join(dir(p), namespacesDir, pod.Namespace), pod.Namespace, "")
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	return readHead(p)
}

// readHead returns the decision for a namespace that is not in the mirror.
func readHead(p paths.Paths) (policy.Decision, error) {
	d, err := readFile(filepath.Join(dir(p), headFile), "", "")
	switch {
	case err == nil && d.Sides[policy.Ingress].Isolated && !Known(p):
		return d, fmt.Errorf("%w: see that `patchbayd node` runs and can list them; its log says why it cannot", ErrUnknown)
	case err == nil && d.Sides[policy.Ingress].Isolated:
		return d, fmt.Errorf("%s does not have its namespace, which may have policies: %s", dir(p), again)
	case !errors.Is(err, fs.ErrNotExist):
		return d, err
	}
	if !Known(p) {
		return policy.Decision{}, nil // no mirror
	}
	return policy.Decision{}, fmt.Errorf("%w: %s", err, again) // its head is lost
}

// again is the advice for a file that the agent writes.
const again = "see that `patchbayd node` runs, which writes it again"

func readFile(path, namespace, pod string) (policy.Decision, error) {
	return readAs(path, func(data []byte) (policy.Decision, error) { return decode(data, namespace, pod) })
}

func readAs(path string, decode func([]byte) (policy.Decision, error)) (policy.Decision, error) {
	data, err := durable.ReadUpTo(path, maxSize)
	if errors.Is(err, durable.ErrIrregular) {
		err = fmt.Errorf("%w: remove it", err)
	}
	if err != nil {
		return policy.Decision{}, err
	}
	d, err := decode(data)
	if errors.Is(err, sealed.ErrSchema) {
		return policy.Decision{}, fmt.Errorf("read %s: %w: install the plugins and the agent of one release", path, err)
	}
	if err != nil {
		return policy.Decision{}, fmt.Errorf("read %s: %w: %s", path, err, again)
	}
	return d, nil
}
