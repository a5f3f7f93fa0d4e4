"""The OME-XML of one picture (schema 2016-06): what it shows, how large its pixels are, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from sheafstain.window import Resolution, Size

NAMESPACE = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
_SCHEMA = f"{NAMESPACE} {NAMESPACE}/ome.xsd"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"


def ome_xml(size: Size, resolution: Resolution, channels: int, description: Mapping[str, Any]) -> str:
    """``description`` becomes a MapAnnotation of the image, a nested value as JSON, and its stain names the channel."""
    root = ET.Element(
        "OME",
        {"xmlns": NAMESPACE, "xmlns:xsi": _XSI, "xsi:schemaLocation": _SCHEMA, "Creator": description["software"]},
    )
    stain = str(description.get("stain", "RGB" if channels == 3 else "map"))
    image = ET.SubElement(root, "Image", ID="Image:0", Name=stain)
    ET.SubElement(image, "Description").text = description["notice"]
    pixels = ET.SubElement(
        image,
        "Pixels",
        ID="Pixels:0",
        DimensionOrder="XYCZT",
        Type="uint8",
        SizeX=str(size.w),
        SizeY=str(size.h),
        SizeC=str(channels),
        SizeZ="1",
        SizeT="1",
        PhysicalSizeX=repr(resolution.mpp),
        PhysicalSizeXUnit="µm",
        PhysicalSizeY=repr(resolution.mpp),
        PhysicalSizeYUnit="µm",
        Interleaved="true" if channels == 3 else "false",
    )
    ET.SubElement(pixels, "Channel", ID="Channel:0:0", Name=stain, SamplesPerPixel=str(channels))
    ET.SubElement(pixels, "TiffData", IFD="0", PlaneCount="1")
    ET.SubElement(image, "AnnotationRef", ID="Annotation:0")
    annotation = ET.SubElement(
        ET.SubElement(root, "StructuredAnnotations"), "MapAnnotation", ID="Annotation:0", Namespace="sheafstain"
    )
    values = ET.SubElement(annotation, "Value")
    for key, value in description.items():
        ET.SubElement(values, "M", K=key).text = value if isinstance(value, str) else json.dumps(value)
    return '<?xml version="1.0" encoding="UTF-8"?>' + ET.tostring(root, "unicode")
