// Package faultbench breaks real servers under the library and checks what is left. All of it is test code.
package faultbench
