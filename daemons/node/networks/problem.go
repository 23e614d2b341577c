// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
)

// Problem says why a pod is not attached to its networks.
type Problem struct {
	Pod  Pod
	Text string
}

// patience is how long a definition that a new pod names may be missing: it may be created together with the pod.
const patience = 10 * time.Second

// Judge finds pods whose networks cannot be attached, as far as the objects of the API say so.
type Judge struct {
	Definitions []npwg.Definition
	Attached    map[string]bool // the UIDs of the API of pods that are attached already
	Isolated    bool            // pods may use only definitions of their own namespace and of npwg.GlobalNamespace
	Now         time.Time
}

// Problems returns the problems of pods, in their order.
func (j *Judge) Problems(pods []Pod) (list []Problem) {
	known := make(map[string]*npwg.Definition)
	for i := range j.Definitions {
		d := &j.Definitions[i]
		known[d.String()] = d
	}
	for _, pod := range pods {
		if pod.Exempt || pod.Networks == "" || j.Attached[pod.UID] {
			continue
		}
		if err := j.judge(&pod, known); err != nil {
			list = append(list, Problem{pod, err.Error()})
		}
	}
	return list
}

func (j *Judge) judge(pod *Pod, known map[string]*npwg.Definition) error {
	selected, err := npwg.Parse(pod.Networks, pod.Namespace)
	if err == nil {
		err = npwg.Name(selected, "eth0")
	}
	if err == nil {
		_, err = npwg.Gateways(selected, false)
	}
	if err != nil {
		return fmt.Errorf("%w: correct the annotation", err)
	}
	for i := range selected {
		s := &selected[i]
		if err := npwg.Allowed(s, pod.Namespace, []string{npwg.GlobalNamespace}); j.Isolated && err != nil {
			return err
		}
		if err := j.defined(pod, s, known[s.String()]); err != nil {
			return err
		}
	}
	return nil
}

// defined judges the definition of a network. d is nil if there is none.
func (j *Judge) defined(pod *Pod, s *npwg.Selection, d *npwg.Definition) error {
	switch {
	case d == nil && j.Now.Sub(pod.Created) < patience:
		return nil
	case d == nil:
		return fmt.Errorf("there is no NetworkAttachmentDefinition %s: create it, or correct the annotation %s; the pod waits for it", s, npwg.NetworksKey)
	case d.Config == "":
		return nil // a file of the node has it
	}
	if _, _, err := npwg.Named([]byte(d.Config), d.Name); err != nil {
		return fmt.Errorf("NetworkAttachmentDefinition %s: %w: correct its spec.config", s, err)
	}
	return nil
}
