// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/patchbay-net/patchbay/internal/podnet"
)

// Containers returns the choice that network policies of a namespace select containers that are not
// pods by these labels. Both may be empty. Its errors are about wrong names.
func Containers(namespace string, labels map[string]string) (c podnet.Containers, err error) {
	if namespace == "" && len(labels) > 0 {
		return c, errors.New("--containers-label needs --containers-namespace")
	}
	var wrong []string
	if namespace != "" {
		wrong = validation.IsDNS1123Label(namespace)
	}
	for key, value := range labels {
		wrong = slices.Concat(wrong, validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
	}
	if len(wrong) > 0 {
		return c, fmt.Errorf("the namespace %q or a label of containers is wrong: %s", namespace, strings.Join(wrong, "; "))
	}
	return podnet.Containers{Namespace: namespace, Labels: labels}, nil
}
