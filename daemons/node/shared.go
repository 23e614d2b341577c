// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
)

// The agent follows Nodes and Namespaces even if it does not enforce network policies. If it does, the
// Cluster needs both too. So that the agent asks the API server only once, a shared store passes on to the
// Cluster what a Reflector stores in it.

// shared is a store that passes on what it stores.
type shared struct {
	cache.ReflectorStore
	kind    policies.Kind
	cluster *policies.Cluster
	trust   func() error
}

// sharing returns a source whose objects also go to a Cluster, if there is one. trust returns an error if
// a list of all objects must be ignored.
func (s source) sharing(k policies.Kind, c *policies.Cluster, trust func() error) source {
	if c != nil {
		s.store = &shared{s.store, k, c, trust}
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
	text, err := policyText(obj)
	if err != nil {
		return err
	}
	return s.cluster.Set(s.kind, text)
}

// Delete removes an object.
func (s *shared) Delete(obj any) error {
	if o, ok := obj.(metav1.Object); ok {
		s.cluster.Delete(s.kind, "", o.GetName())
	}
	return s.ReflectorStore.Delete(obj)
}

// Replace stores a list of all objects. A list that the first store refuses is not passed on.
func (s *shared) Replace(list []any, version string) error {
	if err := s.ReflectorStore.Replace(list, version); err != nil {
		return err
	}
	if err := s.trust(); err != nil {
		s.cluster.Report(s.kind, err)
		return err
	}
	return s.cluster.Replace(s.kind, func(yield func([]byte, error) bool) {
		for _, obj := range list {
			if !yield(policyText(obj)) {
				return
			}
		}
	})
}

// Transformer implements cache.TransformingStore.
func (s *shared) Transformer() cache.TransformFunc {
	if t, ok := s.ReflectorStore.(cache.TransformingStore); ok {
		return t.Transformer()
	}
	return nil
}

// policyText returns what policies see of a Node or a Namespace, in the API's JSON.
func policyText(obj any) ([]byte, error) {
	var out struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"metadata"`
		Spec struct {
			PodCIDRs []string `json:"podCIDRs,omitempty"`
		} `json:"spec"`
		Status struct {
			Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
		} `json:"status"`
	}
	switch o := obj.(type) {
	case *corev1.Node:
		out.Metadata.Name, out.Metadata.Labels, out.Status.Addresses = o.Name, o.Labels, o.Status.Addresses
		out.Spec.PodCIDRs = o.Spec.PodCIDRs
	case *metav1.PartialObjectMetadata:
		out.Metadata.Name, out.Metadata.Labels = o.Name, o.Labels
	default:
		return nil, fmt.Errorf("a Node or a Namespace is a %T", obj)
	}
	return json.Marshal(out)
}
