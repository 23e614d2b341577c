// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/services"
)

// These are annotations of the Lease of an address.
const (
	AnnotationService = plan.AnnotationPrefix + "service"
	AnnotationUID     = plan.AnnotationPrefix + "service-uid"
)

// apiLease is a Lease of coordination.k8s.io/v1.
type apiLease struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   apiLeaseMetadata `json:"metadata"`
	Spec       apiLeaseSpec     `json:"spec"`
}

type apiLeaseMetadata struct {
	Namespace         string            `json:"namespace"`
	Name              string            `json:"name"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp time.Time         `json:"creationTimestamp,omitzero"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

type apiLeaseSpec struct {
	HolderIdentity       string `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
}

// parseLease reads a Lease of either kind. The value is a Session, a Holding, or nil if it cannot be read.
func parseLease(text []byte) (name services.Name, value any, err error) {
	var o apiLease
	err = json.Unmarshal(text, &o)
	name = services.Name{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if strings.HasPrefix(name.Name, nodePrefix) && err == nil {
		return name, o.session(), nil
	}
	l, wrong := o.lease()
	if err = errors.Join(err, wrong); err != nil {
		return name, nil, err
	}
	return name, l, nil
}

func (o *apiLease) session() Session {
	return Session{ID: o.Spec.HolderIdentity, Version: o.Metadata.ResourceVersion, Lasts: time.Duration(o.Spec.LeaseDurationSeconds) * time.Second}
}

func (o *apiLease) lease() (l Holding, err error) {
	m := &o.Metadata
	l = Holding{UID: m.Annotations[AnnotationUID], Holder: o.Spec.HolderIdentity, Created: m.CreationTimestamp, Object: m.UID, Version: m.ResourceVersion}
	l.Service.Namespace, l.Service.Name, _ = strings.Cut(m.Annotations[AnnotationService], "/")
	l.Addr, err = addressOf(m.Name)
	return l, err
}

// ReadLease reads the Lease of an address, as the API serves it.
func ReadLease(text []byte) (Holding, error) {
	name, value, err := parseLease(text)
	if l, ok := value.(Holding); ok {
		return l, nil
	}
	return Holding{}, fmt.Errorf("read the Lease %s of an address: %w", name, errors.Join(err, errLease))
}

// ReadSession reads the Lease of a node, as the API serves it.
func ReadSession(text []byte) (Session, error) {
	name, value, err := parseLease(text)
	if s, ok := value.(Session); ok {
		return s, nil
	}
	return Session{}, fmt.Errorf("read the Lease %s of a node: %w", name, errors.Join(err, errLease))
}

func newLease(name, version string) apiLease {
	return apiLease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: apiLeaseMetadata{Namespace: Namespace, Name: name, ResourceVersion: version}}
}

// JSON returns the Lease of an address as the API takes it.
func (l Holding) JSON() ([]byte, error) {
	o := newLease(LeaseName(l.Addr), l.Version)
	o.Metadata.UID, o.Spec.HolderIdentity = l.Object, l.Holder
	o.Metadata.Annotations = map[string]string{AnnotationService: l.Service.String(), AnnotationUID: l.UID}
	return json.Marshal(o)
}

// JSON returns the Lease of a node as the API takes it, renewed now.
func (s Session) JSON(node string, now time.Time) ([]byte, error) {
	o := newLease(SessionName(node), s.Version)
	o.Spec = apiLeaseSpec{s.ID, int(s.Lasts / time.Second), now.UTC().Format("2006-01-02T15:04:05.000000Z")}
	return json.Marshal(o)
}
