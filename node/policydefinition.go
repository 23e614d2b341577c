// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	// settle is how long an API server may need to serve a kind after it says so.
	settle = time.Second
)

// definition is the part of a CustomResourceDefinition that says whether the API server has a kind.
type definition struct {
	Metadata struct{ ResourceVersion string }
	Spec     struct {
		Versions []struct {
			Name   string
			Served bool
		}
	}
	Status struct {
		Conditions []struct{ Type, Status string }
	}
}

// serves reports whether the API server has a version of the kind.
func (d *definition) serves(version string) bool {
	established := false
	for _, c := range d.Status.Conditions {
		established = established || c.Type == "Established" && c.Status == "True"
	}
	for _, v := range d.Spec.Versions {
		if v.Name == version && v.Served {
			return established
		}
	}
	return false
}

// awaitKind waits until the kind's CustomResourceDefinition is established, or w.pause has passed: the
// agent may have no right to follow the definition, as with an earlier manifest.
func (w *kindWatch) awaitKind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resident.Jitter(w.pause))
	defer cancel()
	if err := w.awaitDefinition(ctx); err != nil {
		<-ctx.Done()
		return
	}
	clock.Sleep(ctx, settle)
}

// awaitDefinition returns nil when the definition is established, but only once for each of its
// versions: if the kind is still not served, only time or another change can help.
func (w *kindWatch) awaitDefinition(ctx context.Context) error {
	api, err := w.connect()
	if err != nil {
		return err
	}
	body, err := api.Objects(ctx, definitionsPath, metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=" + w.definition})
	if err != nil {
		return err
	}
	events := newJSONEvents(body, func(error) {})
	defer events.Close()
	for {
		kind, object, err := events.Decode()
		if err != nil {
			return err
		}
		o, ok := object.(*jsonObject)
		if !ok || !slices.Contains([]watch.EventType{watch.Added, watch.Modified}, kind) || o.ResourceVersion == w.defined {
			continue
		}
		var d definition
		if err := json.Unmarshal(o.text, &d); err == nil && d.serves(clusterVersion) {
			w.defined = o.ResourceVersion
			return nil
		}
	}
}
