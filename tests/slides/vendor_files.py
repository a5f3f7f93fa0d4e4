"""The formats that OpenSlide alone understands, each as small as OpenSlide accepts it, written here byte by byte.

Every maker writes ``PICTURE`` at 0.5 µm/px into a folder and returns the file to open.
"""

from __future__ import annotations

import struct
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile

TILE = 256


def picture(h: int, w: int) -> np.ndarray:
    y, x = np.mgrid[:h, :w]
    return (np.stack([np.sin(y / 31), np.cos(x / 37), np.sin((x + 2 * y) / 53)], -1) * 55 + 150).astype(np.uint8)


PICTURE = picture(512, 768)


def jpeg(pixels: np.ndarray) -> bytes:
    return bytes(imagecodecs.jpeg8_encode(np.ascontiguousarray(pixels), 92, subsampling=(1, 1)))


def tiles(image: np.ndarray) -> list[np.ndarray]:
    """Row by row; ``image`` is a multiple of the tile, or filled up with its last pixels."""
    padded = np.pad(image, ((0, -image.shape[0] % TILE), (0, -image.shape[1] % TILE), (0, 0)), "edge")
    return [
        padded[y : y + TILE, x : x + TILE]
        for y in range(0, padded.shape[0], TILE)
        for x in range(0, padded.shape[1], TILE)
    ]


JPEG_TIFF = {"photometric": "rgb", "compression": "jpeg", "metadata": None}


def ndpi(folder: Path) -> Path:
    """Hamamatsu: one JPEG a level, told apart by private tags."""
    with tifffile.TiffWriter(folder / "a.ndpi") as tiff:
        for lens, step in ((20.0, 1), (5.0, 4)):
            level, per_cm = PICTURE[::step, ::step], 20_000 / step
            private = [(65420, "I", 1, 1, True), (65421, "f", 1, lens, True)]
            private += [(tag, "i", 1, 0, True) for tag in (65422, 65423, 65424)]
            place = {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER", "rowsperstrip": len(level)}
            tiff.write(level, extratags=private, **place, **JPEG_TIFF)
    return folder / "a.ndpi"


def scn(folder: Path) -> Path:
    """Leica: an XML that places the picture on the glass; 0.5 µm/px."""
    h, w = PICTURE.shape[:2]
    levels = "".join(f'<dimension sizeX="{w >> k}" sizeY="{h >> k}" r="{k}" ifd="{k}"/>' for k in range(2))
    said = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
        f'<collection name="c" uuid="u" sizeX="{w * 1000}" sizeY="{h * 1000}" barcode=""><image name="i" uuid="u">'
        f'<creationDate>2020-01-01</creationDate><device model="m" version="1"/><pixels sizeX="{w}" sizeY="{h}">'
        f'{levels}</pixels><view sizeX="{w * 500}" sizeY="{h * 500}" offsetX="0" offsetY="0" spacingZ="0"/>'
        "<scanSettings><objectiveSettings><objective>20</objective></objectiveSettings><illuminationSettings>"
        "<numericalAperture>0.4</numericalAperture><illuminationSource>brightfield</illuminationSource>"
        "</illuminationSettings></scanSettings></image></collection></scn>"
    )
    with tifffile.TiffWriter(folder / "a.scn", bigtiff=True) as tiff:
        for k, description in enumerate((said, None)):
            place = {"resolution": (20_000 >> k, 20_000 >> k), "resolutionunit": "CENTIMETER", "tile": (TILE, TILE)}
            tiff.write(PICTURE[:: 1 + k, :: 1 + k], description=description, **place, **JPEG_TIFF)
    return folder / "a.scn"


def bif(folder: Path) -> Path:
    """Ventana: tiles joined in serpentines from the bottom left."""
    columns = PICTURE.shape[1] // TILE

    def joint(direction: str, first: int, second: int) -> str:
        return (
            f'<TileJointInfo FlagJoined="1" Confidence="100" Direction="{direction}" Tile1="{first}" Tile2="{second}" '
            'OverlapX="0" OverlapY="0"/>'
        )

    joints = [joint("RIGHT", k, k + 1) for k in range(1, columns)]
    joints += [joint("UP", k, 2 * columns + 1 - k) for k in range(1, columns + 1)]
    joints += [joint("RIGHT", k + 1, k) for k in range(columns + 1, 2 * columns)]
    scan = '<Metadata><iScan Magnification="20" ScanRes="0.5"><AOI0 Left="0" Top="0" Right="2" Bottom="1"/></iScan>'
    scan += "</Metadata>"
    encoded = (
        '<EncodeInfo Ver="2"><SlideInfo><ServerDirectory/></SlideInfo><SlideStitchInfo><ImageInfo AOIScanned="1" '
        f'AOIIndex="0" NumRows="2" NumCols="{columns}" Width="{TILE}" Height="{TILE}" Pos-X="0" Pos-Y="0">'
        f'{"".join(joints)}</ImageInfo></SlideStitchInfo><AoiOrigin><AOI0 OriginX="0" OriginY="0"/></AoiOrigin>'
        "</EncodeInfo>"
    )
    with tifffile.TiffWriter(folder / "a.bif", bigtiff=True) as tiff:
        for image, xmp, options in (
            (PICTURE[:100, :90], scan, {"description": "Label Image", "photometric": "rgb", "metadata": None}),
            (PICTURE, encoded, {"description": "level=0 mag=20 quality=90", "tile": (TILE, TILE), **JPEG_TIFF}),
        ):
            tiff.write(image, extratags=[(700, "B", len(xmp), xmp.encode(), True)], **options)
    return folder / "a.bif"


def philips(folder: Path) -> Path:
    def attribute(name: str, group: str, element: str, kind: str, value: str) -> str:
        return f'<Attribute Name="{name}" Group="{group}" Element="{element}" PMSVR="{kind}">{value}</Attribute>'

    def array(name: str, group: str, element: str, of: str, value: str) -> str:
        inner = f'<Array><DataObject ObjectType="{of}">{value}</DataObject></Array>'
        return attribute(name, group, element, "IDataObjectArray", inner)

    spacing = attribute(
        "DICOM_PIXEL_SPACING", "0x0028", "0x0030", "IDoubleArray", "&quot;0.0005&quot; &quot;0.0005&quot;"
    )
    number = attribute("PIIM_PIXEL_DATA_REPRESENTATION_NUMBER", "0x1001", "0x8B02", "IUInt16", "0")
    levels = array(
        "PIIM_PIXEL_DATA_REPRESENTATION_SEQUENCE", "0x1001", "0x8B01", "PixelDataRepresentation", spacing + number
    )
    kind = attribute("PIM_DP_IMAGE_TYPE", "0x301D", "0x1004", "IString", "WSI")
    images = array("PIM_DP_SCANNED_IMAGES", "0x301D", "0x1003", "DPScannedImage", kind + spacing + levels)
    maker = attribute("DICOM_MANUFACTURER", "0x0008", "0x0070", "IString", "PHILIPS")
    said = f'<?xml version="1.0" encoding="UTF-8" ?><DataObject ObjectType="DPUfsImport">{maker}{images}</DataObject>'
    options = {"software": "Philips DP v1.0", "description": said, "tile": (TILE, TILE)}
    tifffile.imwrite(folder / "a.tiff", PICTURE, **options, **JPEG_TIFF)
    return folder / "a.tiff"


def mrxs(folder: Path, absent: int | None = None) -> Path:
    """MIRAX: a JPEG preview beside a folder of tables and data; ``absent``: a tile that was not scanned."""
    beside = folder / "a"
    beside.mkdir()
    (folder / "a.mrxs").write_bytes(jpeg(PICTURE[:64, :64]))
    slide = "0" * 32
    data, entries = b"01.02" + slide.encode() + bytes(11), []
    for k, tile in enumerate(tiles(PICTURE)):
        if k != absent:
            entries.append((k, len(data), len(jpeg(tile)), 0))
            data += jpeg(tile)
    (beside / "Data0000.dat").write_bytes(data)
    head = b"01.02" + slide.encode()
    root = len(head) + 8
    table = struct.pack("<7i", root, root, root + 4, 0, root + 12, len(entries), 0)
    (beside / "Index.dat").write_bytes(head + table + b"".join(struct.pack("<4i", *entry) for entry in entries))
    sections = {
        "GENERAL": {"SLIDE_ID": slide, "IMAGENUMBER_X": 3, "IMAGENUMBER_Y": 2, "OBJECTIVE_MAGNIFICATION": 20}
        | {"CameraImageDivisionsPerSide": 1},
        "HIERARCHICAL": {"INDEXFILE": "Index.dat", "HIER_COUNT": 1, "NONHIER_COUNT": 0, "HIER_0_COUNT": 1}
        | {"HIER_0_NAME": "Slide zoom level", "HIER_0_VAL_0": "Zoom", "HIER_0_VAL_0_SECTION": "LEVEL"},
        "DATAFILE": {"FILE_COUNT": 1, "FILE_0": "Data0000.dat"},
        "LEVEL": {"OVERLAP_X": 0, "OVERLAP_Y": 0, "MICROMETER_PER_PIXEL_X": 0.5, "MICROMETER_PER_PIXEL_Y": 0.5}
        | {"IMAGE_FILL_COLOR_BGR": 0xE0F0FA, "DIGITIZER_WIDTH": TILE, "DIGITIZER_HEIGHT": TILE}
        | {"IMAGE_FORMAT": "JPEG", "IMAGE_CONCAT_FACTOR": 0},
    }
    lines = [f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) for name, values in sections.items()]
    (beside / "Slidedat.ini").write_text("".join(lines))
    return folder / "a.mrxs"


def dicom(folder: Path) -> Path:
    """Two levels, a file each, JPEG frames (PS3.3 A.32.8)."""

    def element(group: int, number: int, kind: str, value: bytes | str) -> bytes:
        value = value.encode() if isinstance(value, str) else value
        value += (b"\0" if kind in ("UI", "OB") else b" ") * (len(value) % 2)
        long = kind in ("OB", "SQ")
        return (
            struct.pack("<HH2s" + ("HI" if long else "H"), group, number, kind.encode(), *[0] * long, len(value))
            + value
        )

    def sequence(group: int, number: int, item: bytes) -> bytes:
        return element(group, number, "SQ", struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item)

    storage = "1.2.840.10008.5.1.4.1.1.77.1.6"
    for k in range(2):
        image, mm, instance = PICTURE[:: 1 + k, :: 1 + k], 0.0005 * (1 + k), f"1.2.3.{k + 1}"
        frames = [jpeg(tile) for tile in tiles(image)]
        meta = element(2, 1, "OB", b"\0\1") + element(2, 2, "UI", storage) + element(2, 3, "UI", instance)
        meta += element(2, 0x10, "UI", "1.2.840.10008.1.2.4.50") + element(2, 0x12, "UI", "1.2.3")
        body = element(8, 8, "CS", "ORIGINAL\\PRIMARY\\VOLUME\\NONE") + element(8, 0x16, "UI", storage)
        body += element(8, 0x18, "UI", instance) + element(8, 0x60, "CS", "SM") + element(0x20, 0xD, "UI", "1.2.9")
        body += element(0x20, 0xE, "UI", "1.2.4") + element(0x20, 0x9311, "CS", "TILED_FULL")
        body += element(0x28, 2, "US", struct.pack("<H", 3)) + element(0x28, 4, "CS", "YBR_FULL_422")
        body += element(0x28, 6, "US", bytes(2)) + element(0x28, 8, "IS", str(len(frames)))
        for number, value in ((0x10, TILE), (0x11, TILE), (0x100, 8), (0x101, 8), (0x102, 7), (0x103, 0)):
            body += element(0x28, number, "US", struct.pack("<H", value))
        body += element(0x48, 6, "UL", struct.pack("<I", image.shape[1]))
        body += element(0x48, 7, "UL", struct.pack("<I", image.shape[0]))
        body += sequence(0x48, 0x105, element(0x48, 0x106, "SH", "1")) + element(
            0x48, 0x303, "UL", struct.pack("<I", 1)
        )
        spacing = element(0x18, 0x50, "DS", "0.001") + element(0x28, 0x30, "DS", f"{mm}\\{mm}")
        body += sequence(0x5200, 0x9229, sequence(0x28, 0x9110, spacing))
        body += struct.pack("<HH2sHI", 0x7FE0, 0x10, b"OB", 0, 0xFFFFFFFF) + struct.pack("<HHI", 0xFFFE, 0xE000, 0)
        for frame in frames:
            frame += bytes(len(frame) % 2)
            body += struct.pack("<HHI", 0xFFFE, 0xE000, len(frame)) + frame
        body += struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
        length = element(2, 0, "UL", struct.pack("<I", len(meta)))
        (folder / f"{k}.dcm").write_bytes(bytes(128) + b"DICM" + length + meta + body)
    return folder / "0.dcm"


KINDS = {ndpi: "hamamatsu", scn: "leica", bif: "ventana", philips: "philips", mrxs: "mirax", dicom: "dicom"}
