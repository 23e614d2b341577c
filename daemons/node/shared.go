// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// The agent follows Nodes and Namespaces even if it does not enforce network policies or serve Services. If it does, their
// copies need both too. So that the agent asks the API server only once, a shared store passes on to the
// copies what a Reflector stores in it.

// shared is a store that passes on what it stores.
type shared struct {
	cache.ReflectorStore
	copies []copies
	trust  func() error
}

// sharing returns a source whose objects also go to copies, if there are some. trust returns an error if
// a list of all objects must be ignored.
func (s source) sharing(list []copies, trust func() error) source {
	if len(list) > 0 {
		s.store = &shared{s.store, list, trust}
	}
	return s
}

// Add stores an object.
func (s *shared) Add(obj any) error {
	if err := s.ReflectorStore.Add(obj); err != nil {
		return err
	}
	return s.set(obj)
}

// Update stores a changed object.
func (s *shared) Update(obj any) error {
	if err := s.ReflectorStore.Update(obj); err != nil {
		return err
	}
	return s.set(obj)
}

func (s *shared) set(obj any) error {
	text, err := objectText(obj)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range s.copies {
		errs = append(errs, c.Set(text))
	}
	return errors.Join(errs...)
}

// Delete removes an object.
func (s *shared) Delete(obj any) error {
	if o, ok := obj.(metav1.Object); ok {
		for _, c := range s.copies {
			c.Delete("", o.GetName())
		}
	}
	return s.ReflectorStore.Delete(obj)
}

// Replace stores a list of all objects. A list that the first store refuses is not passed on.
func (s *shared) Replace(list []any, version string) error {
	if err := s.ReflectorStore.Replace(list, version); err != nil {
		return err
	}
	if err := s.trust(); err != nil {
		for _, c := range s.copies {
			c.Report(err)
		}
		return err
	}
	var errs []error
	for _, c := range s.copies {
		errs = append(errs, c.Replace(func(yield func([]byte, error) bool) {
			for _, obj := range list {
				if !yield(objectText(obj)) {
					return
				}
			}
		}))
	}
	return errors.Join(errs...)
}

// Transformer implements cache.TransformingStore.
func (s *shared) Transformer() cache.TransformFunc {
	if t, ok := s.ReflectorStore.(cache.TransformingStore); ok {
		return t.Transformer()
	}
	return nil
}

// objectText returns what copies have of a Node or a Namespace, in the API's JSON.
func objectText(obj any) ([]byte, error) {
	var out struct {
		Metadata struct {
			Name              string            `json:"name"`
			Labels            map[string]string `json:"labels,omitempty"`
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp,omitempty"`
		} `json:"metadata"`
		Spec struct {
			PodCIDRs []string       `json:"podCIDRs,omitempty"`
			Taints   []corev1.Taint `json:"taints,omitempty"`
		} `json:"spec"`
		Status struct {
			Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
		} `json:"status"`
	}
	switch o := obj.(type) {
	case *corev1.Node:
		out.Metadata.Name, out.Metadata.Labels, out.Status.Addresses = o.Name, o.Labels, o.Status.Addresses
		out.Metadata.DeletionTimestamp, out.Spec.PodCIDRs, out.Spec.Taints = o.DeletionTimestamp, o.Spec.PodCIDRs, o.Spec.Taints
	case *metav1.PartialObjectMetadata:
		out.Metadata.Name, out.Metadata.Labels = o.Name, o.Labels
	default:
		return nil, fmt.Errorf("a Node or a Namespace is a %T", obj)
	}
	return json.Marshal(out)
}
