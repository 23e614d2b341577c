// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// sharing lets pods share what is equal in all pods of a workload. It counts the pods, and drops a
// value when no pod has it any more.
type sharing struct {
	mu        sync.Mutex
	texts     map[string]*text
	workloads map[digest]*workload
}

// text is a text that many pods have, such as the name of a node.
type text struct {
	value   string
	holders int
}

// workload is what the pods of one workload share.
type workload struct {
	namespace string
	labels    policy.Labels
	ports     []policy.Port
	pods      int
}

// digest identifies a workload. It takes less memory than a text, if each pod has labels of its own,
// as in a StatefulSet.
type digest [16]byte

// digestOf returns the beginning of the SHA-256 of what a workload's pods share.
func digestOf(p *policy.Pod) (d digest) {
	words := []string{p.Namespace}
	for _, l := range p.Labels {
		words = append(words, l.Key, l.Value)
	}
	words = append(words, "") // no label has an empty key
	for _, port := range p.Ports {
		words = append(words, port.String())
	}
	var b []byte
	for _, w := range words {
		b = append(binary.AppendUvarint(b, uint64(len(w))), w...)
	}
	sum := sha256.Sum256(b)
	copy(d[:], sum[:])
	return d
}

// hold gives a pod the memory of equal pods.
func (s *sharing) hold(p *policy.Pod) {
	id := digestOf(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workloads[id]
	if w == nil {
		w = s.workload(p)
		s.workloads[id] = w
	}
	w.pods++
	p.Namespace, p.Labels, p.Ports = w.namespace, w.labels, w.ports
	p.Node, p.Phase = s.holdText(p.Node), s.holdText(p.Phase)
}

// workload returns a new workload. Many workloads have the same namespace, and the same keys of labels.
func (s *sharing) workload(p *policy.Pod) *workload {
	w := &workload{namespace: s.holdText(p.Namespace), labels: slices.Clip(p.Labels), ports: slices.Clip(p.Ports)}
	for i := range w.labels {
		w.labels[i].Key = s.holdText(w.labels[i].Key)
	}
	for i := range w.ports {
		w.ports[i].Name = s.holdText(w.ports[i].Name)
	}
	return w
}

// release is called once for each pod that was held.
func (s *sharing) release(p *policy.Pod) {
	id := digestOf(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseText(p.Node)
	s.releaseText(p.Phase)
	w := s.workloads[id]
	if w.pods--; w.pods > 0 {
		return
	}
	delete(s.workloads, id)
	s.releaseText(w.namespace)
	for _, l := range w.labels {
		s.releaseText(l.Key)
	}
	for _, port := range w.ports {
		s.releaseText(port.Name)
	}
}

func (s *sharing) holdText(value string) string {
	t := s.texts[value]
	if t == nil {
		t = &text{value: value}
		s.texts[value] = t
	}
	t.holders++
	return t.value
}

func (s *sharing) releaseText(value string) {
	t := s.texts[value]
	if t.holders--; t.holders == 0 {
		delete(s.texts, value)
	}
}
